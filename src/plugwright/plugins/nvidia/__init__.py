"""NVIDIA GPUs: found, kept honest, shared, chosen by their links. Its modules are the interface."""
