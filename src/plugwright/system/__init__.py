"""The machine and the event loop: what both halves of the protocol need of them, below the wire.

`concurrency` has the one wake-up of the tree (`Latest`); `files`, `directories`, `sockets`, `inotify` and `processes`
wrap what the kernel offers; `json_lines` is the control sockets' format. Nothing here knows Kubernetes.
"""
