"""`plugwright doctor`: the problems of a node, why they matter, and the commands that fix them.

`diagnosis` runs every check; a check is a function of `ExaminedNode`, which reads files, sockets and processes of the
node with limits. Checks never change the node.
"""

__all__: list[str] = []
