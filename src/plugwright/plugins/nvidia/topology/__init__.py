"""Topology: from the links between GPUs to the GPUs for a container. Import its modules directly."""
