"""The Container Device Interface: specs with a container runtime's edits for each device name.

`spec` contains the values, `files` their encoding and directory, `schema` reads files, and `recreation` restores the
names given to containers. Plugin authors need only these names:

    directory = cdi.SpecDirectory(Path("/var/run/cdi"), owner="my-plugin")
    edits = cdi.ContainerEdits(device_nodes=[cdi.DeviceNode("/dev/st0")])
    directory.write(cdi.Spec("example.com/tape", [cdi.Device("st0", edits)]))
    ...
    return Allocation(cdi=["example.com/tape=st0"])
"""

from plugwright.sdk.cdi.files import (
    DYNAMIC,
    STATIC,
    SpecDirectory,
    from_plain,
    minimum_version,
    read,
    to_json,
    to_plain,
)
from plugwright.sdk.cdi.spec import (
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
    annotation,
    edits_of,
    qualified_name,
    split_name,
)

__all__ = [
    "DYNAMIC",
    "STATIC",
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "Hook",
    "IntelRdt",
    "Mount",
    "NetDevice",
    "Spec",
    "SpecDirectory",
    "annotation",
    "edits_of",
    "from_plain",
    "minimum_version",
    "qualified_name",
    "read",
    "split_name",
    "to_json",
    "to_plain",
]
