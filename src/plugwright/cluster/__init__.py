"""The embedded cluster: an API server, a scheduler and emulated nodes in one process.

`embedded` wires them together. `api` is the API server over `store`; `scheduler` binds pods by the rules in `fit` and
`affinity`; `node` is one emulated kubelet with its Node object; `node_lifecycle` notices nodes that stop reporting.
"""

__all__ = ["KUBERNETES_VERSION"]

KUBERNETES_VERSION = "1.36.4"  # the release whose API, scheduler and kubelet this package imitates
