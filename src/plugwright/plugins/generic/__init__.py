"""Ordinary devices: what a container gets is nodes in /dev, files and variables.

`plugin` serves one resource. A selector finds hardware: `paths`, `usb`, `pci`, `rdma`, `net`, `fpga`, `drm` and `nvme`,
each ignorant of the others, all yielding `units`. `grouping` joins units, `ids` names them, `danger` refuses what would
hand out the node itself, `health` and `checks` watch them, `answers` says what a container gets.
"""

__all__: list[str] = []
