"""Extended resources on the nodes of a real cluster: their backing, adding them by hand, removing them when stale.

Values are in `resources`, the rules in `backing`, `changes` and `removal`; only `client` talks to the API server and
only `kubelet_dir` reads the kubelet's directory. Printing is left to `cli.node`.
"""

__all__: list[str] = []
