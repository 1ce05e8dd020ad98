"""The faults, one module for each kind; `catalogue` names them all."""
