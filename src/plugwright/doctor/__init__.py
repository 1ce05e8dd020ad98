"""`plugwright doctor`: what is wrong on a node, why that matters, and the command that fixes it.

`diagnosis` runs every check; a check is a function of `NodeView`, which reads the node's files, sockets and processes
within limits. Nothing here changes the node.
"""

__all__: list[str] = []
