"""MPS: a control daemon of our own for each resource, which holds the limits, and the plugin's side of it."""
