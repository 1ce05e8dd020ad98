"""The in-memory API server: the part of Kubernetes' API that kubectl and the Python clients need for pods and nodes.

`app.application` is the ASGI application; its caller provides the listener and the certificate. `store` holds the
objects. Each kind is one strategy in `kinds`, which the other modules call and never compare.
"""

__all__ = ["KUBERNETES_VERSION", "RELEASES"]

KUBERNETES_VERSION = "1.36.4"  # the release that the API server, the scheduler and the emulated nodes imitate
RELEASES = {"1.36": KUBERNETES_VERSION, "1.37": "1.37.0"}  # selectable releases, by minor version
