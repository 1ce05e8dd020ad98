"""The embedded API server: the part of Kubernetes' API that kubectl and the Python clients need for pods and nodes.

`app.application` is the ASGI application; its caller listens and has the certificate. Objects are stored in
`cluster.store`. Each kind is one strategy in `kinds`, which all other modules ask and never compare.
"""
