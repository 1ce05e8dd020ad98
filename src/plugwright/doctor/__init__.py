"""`plugwright doctor`: what is wrong on a node, why that matters, and the command that fixes it.

`diagnosis` runs every check; a check is a function of `ExaminedNode`, which reads files, sockets and processes of the
node within limits. Nothing here changes the node.
"""

__all__: list[str] = []
