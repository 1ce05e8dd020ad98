"""The in-memory API server: the part of Kubernetes' API that kubectl and the Python clients need for pods and nodes.

`app.application` is the ASGI application; its caller listens and has the certificate. Objects are stored in
`store`. Each kind is one strategy in `kinds`, which all other modules ask and never compare.
"""

__all__ = ["KUBERNETES_VERSION", "RELEASES"]

KUBERNETES_VERSION = "1.36.4"  # the release that the API server, the scheduler and the emulated nodes imitate
RELEASES = {"1.36": KUBERNETES_VERSION, "1.37": "1.37.0"}  # that can be chosen, by minor version
