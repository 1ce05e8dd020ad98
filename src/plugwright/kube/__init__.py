"""A Kubernetes API server as a client sees it: which cluster, with which credentials, requests, lists and watches."""

__all__: list[str] = []
