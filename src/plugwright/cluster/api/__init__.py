"""The embedded API server: enough of Kubernetes' for kubectl and the Python clients, for pods, nodes and their events.

`app.application` is the ASGI application; who listens, and with which certificate, is the caller's. What is stored is
`cluster.store`'s, and what the kinds are is in `kinds`.
"""
