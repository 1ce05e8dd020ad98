"""The embedded cluster: an API server, a scheduler and emulated nodes in one process.

`embedded` wires them together: `api` is the API server over `store`; `scheduling` binds pods to nodes, `controllers`
clean up behind them; `nodes` has an emulated kubelet each. `joined` puts such nodes into any other API server.
"""

__all__ = ["KUBERNETES_VERSION"]

KUBERNETES_VERSION = "1.36.4"  # the release whose API, scheduler and kubelet this package imitates
