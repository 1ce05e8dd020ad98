"""Ordinary devices: a container gets nodes in /dev, files and variables.

Each family is one file with its filter (the struct of the operator's file), its selector and its `FAMILY`: `paths`,
`usb`, `pci`, `rdma`, `net`, `fpga`, `drm` and `nvme`, each independent of the others; `groups` joins the results of
`paths` and `usb`. All find units of `hardware`. `family` makes plugins from filters, `plugin` serves one resource,
`allocation` makes the response, `cdi` its names, `safety` rejects devices with control of the node, `health` and
`checks` watch the units.
"""

__all__: list[str] = []
