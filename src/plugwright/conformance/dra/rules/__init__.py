"""The rules for DRA drivers, one module for each group; `catalogue` lists them in order."""
