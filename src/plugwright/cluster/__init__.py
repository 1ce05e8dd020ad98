"""The embedded cluster: an API server, a scheduler and emulated nodes in one process.

`embedded` wires them together: `apiserver` stores the objects; `scheduling` binds pods to nodes, `controllers`
clean up behind them; each of the `nodes` has an emulated kubelet. `joined` puts such nodes into any other API server.
"""
