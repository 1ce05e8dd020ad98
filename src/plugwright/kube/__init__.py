"""A Kubernetes API server as a client sees it: which cluster, and with which credentials."""

__all__: list[str] = []
