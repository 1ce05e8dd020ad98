"""The client for Kubernetes API servers: which cluster, with which credentials, requests, lists and watches."""

__all__: list[str] = []
