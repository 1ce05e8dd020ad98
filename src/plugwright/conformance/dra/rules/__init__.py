"""The rules for DRA drivers, one module for each group; `catalogue` has them in order."""
