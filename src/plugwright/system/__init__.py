"""The machine and the event loop, for all packages above.

`concurrency` has the only wake-up of the tree (`Latest`); `files`, `directories`, `sockets`, `inotify` and `processes`
wrap what the kernel offers; `json_lines` is the format of control sockets. Nothing here knows Kubernetes.
"""
