"""Topology: from the links between GPUs to the GPUs that a container should get. Its modules are the interface."""
