"""The machine and the event loop, for all packages above.

`latest` contains the wake-ups (`Latest`, `Signal`), `concurrency` tasks and threads, `log_once` the log of repeated
problems; `files`, `directories`, `sockets`, `inotify` and `processes` wrap system calls; `json_lines` is the
format of control sockets, `http_server` serves a few pages, `systemd` sends notices. `early_signals` is for a program's
first instruction. Nothing here depends on Kubernetes.
"""
