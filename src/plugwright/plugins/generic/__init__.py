"""Ordinary devices: a container gets nodes in /dev, files and variables.

Each family is one file with its filter (the struct of the operator's file), its selector and its `FAMILY`: `paths`,
`usb`, `pci`, `rdma`, `net`, `fpga`, `drm` and `nvme`, each independent of the others; `groups` joins what `paths` and
`usb` find. All find units of `hardware`. `family` makes plugins of filters, `plugin` serves one resource, `allocation`
makes the response, `cdi` its names, `safety` refuses what controls the node, `health` and `checks` watch the units.
"""

__all__: list[str] = []
