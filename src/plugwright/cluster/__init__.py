"""A cluster around the node: what the API server knows of devices.

`node` speaks to the API server and is the only home of its client; decisions are plain functions beside it. `embedded`
is a whole cluster in one process, with an API server (`api`), a scheduler and emulated nodes.
"""
