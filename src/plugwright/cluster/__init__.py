"""The embedded cluster: an API server, a scheduler and emulated nodes in one process.

`embedded` connects them: `apiserver` stores the objects; `scheduling` binds pods to nodes, `controllers` clean up; each
of the `nodes` has an emulated kubelet. `joined` adds such nodes to any other API server.
"""
