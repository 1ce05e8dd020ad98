"""MPS: control daemons with the limits of shared GPUs, run by `plugwright mps run`, and the plugin's side."""
