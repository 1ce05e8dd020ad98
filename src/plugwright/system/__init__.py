"""The machine and the event loop, for all packages above.

`concurrency` has the only wake-up of the tree (`Latest`); `files`, `directories`, `sockets`, `inotify` and `processes`
wrap what the kernel offers; `json_lines` is the format of control sockets, `http_server` serves a few pages, `systemd`
sends notices. `early_signals` is for a program's first instruction. Nothing here knows Kubernetes.
"""
