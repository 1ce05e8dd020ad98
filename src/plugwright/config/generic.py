"""What the operator's file says of ordinary devices: paths, USB, PCI, RDMA, networks, FPGAs, GPUs, NVMe.

A resource has one key that says what to look for, and any of the keys that say how it is handed out:

    - name: example.com/serial
      usb: {vendor: "0403", product: "6001", nodes: [tty]}     what to look for: one selector, or a list of them
      count: 2                                                 how it is handed out
      env: {SERIAL_PORT: "{node}"}

Several selectors in a list are alternatives; the keys inside one must all match; a list of values matches if one of
them does. Texts in selectors are patterns with `*`, `?` and `[…]`. Hexadecimal ids are texts: quote them. Making
plugins of it is `cli.generic`'s work.
"""

from typing import Annotated, Literal

import msgspec

__all__ = [
    "DrmEntry",
    "FpgaEntry",
    "GenericKeys",
    "GenericOptions",
    "GroupEntry",
    "HealthEntry",
    "NetEntry",
    "NvmeEntry",
    "PathEntry",
    "PciEntry",
    "RdmaEntry",
    "UsbEntry",
]

Texts = str | list[str]
# Checked in `generic`: a pattern on both sides of a union makes msgspec 0.22 crash when the process ends.
Ids = Texts
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Permissions = Annotated[str, msgspec.Meta(pattern="^[rwm]{1,3}$")]
AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/")]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Times = Annotated[int, msgspec.Meta(ge=1, le=100)]
RdmaNode = Literal["uverbs", "umad", "issm", "ucm", "rdma_cm"]
LinkType = Literal["ethernet", "infiniband"]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    pass


class PathEntry(_Strict, frozen=True):
    """Files of the host. `/dev/ttyUSB*` alone is the same as `{path: /dev/ttyUSB*}`.

    `to` is the path in the container: a `/` at its end has the name appended, templates are filled in. `type` is found
    out where it is not given: device nodes become device nodes; files, sockets and directories become mounts.
    `permissions` are those of the resource where not given. `optional` and `limit` are for groups: without a match the
    others go without it; a match may be a part of up to `limit` devices.
    """

    path: AbsolutePath
    to: str = ""
    type: Literal["auto", "device", "mount"] = "auto"
    permissions: Permissions | None = None
    read_only: bool = False
    optional: bool = False
    limit: Count = 1


class UsbEntry(_Strict, frozen=True):
    """USB devices. `class` is two hexadecimal digits, of the device or one of its interfaces; `port` is as in `1-4.2`.

    `nodes`: which of its nodes a container gets, and must have: `usb` (/dev/bus/usb/…), `tty`, `video`, `hidraw`,
    `input`, `sound`, `storage`; all there are where it is not given.
    """

    vendor: Ids | None = None
    product: Ids | None = None
    serial: Texts | None = None
    manufacturer: Texts | None = None
    name: Texts | None = None
    class_: Texts | None = msgspec.field(name="class", default=None)
    port: Texts | None = None
    nodes: list[Literal["usb", "tty", "video", "hidraw", "input", "sound", "storage"]] | None = None


class PciEntry(_Strict, frozen=True):
    """PCI functions. `class` is one to six hexadecimal digits, the first of `lspci -n`'s: `02` is any network device.

    `pf`: only virtual functions of these physical ones, by interface name or address, and of those perhaps only some:
    `ens1f0`, `ens1f0#0-3,7`, `0000:3b:00.0#0`. `vf`: only virtual functions, or only others. `mdev`: not the function
    but its mediated devices of these types. `rdma`: only with RDMA, whose nodes the container gets; `vhost`:
    /dev/vhost-net and /dev/net/tun too. `nodes`: `vfio`, `iommufd`, `uio`, or `all` there are below the function; where
    it is not given, what its driver calls for. `pkey` is as 0x8001.
    """

    vendor: Ids | None = None
    device: Ids | None = None
    class_: Texts | None = msgspec.field(name="class", default=None)
    driver: Texts | None = None
    address: Texts | None = None
    acpi_index: Texts | None = None
    pf: Texts | None = None
    vf: bool | None = None
    mdev: Texts | None = None
    link_type: LinkType | list[LinkType] | None = None
    pkey: Texts | None = None
    rdma: bool = False
    vhost: bool = False
    nodes: list[Literal["vfio", "iommufd", "uio", "all"]] | None = None


class RdmaEntry(_Strict, frozen=True):
    """RDMA adapters (HCAs), by the names in /sys/class/infiniband, those of their interfaces, or their PCI ids.

    `nodes`: what a container gets of it; `required`: an adapter that lacks one of these is not offered.
    """

    name: Texts | None = None
    interface: Texts | None = None
    vendor: Ids | None = None
    device: Ids | None = None
    driver: Texts | None = None
    address: Texts | None = None
    link_type: LinkType | list[LinkType] | None = None
    nodes: tuple[RdmaNode, ...] = ("uverbs", "umad", "issm", "ucm", "rdma_cm")
    required: tuple[RdmaNode, ...] = ("uverbs",)


class NetEntry(_Strict, frozen=True):
    """Network interfaces of hardware; with `virtual`, also bridges, bonds and the like."""

    name: Texts | None = None
    driver: Texts | None = None
    vendor: Ids | None = None
    device: Ids | None = None
    address: Texts | None = None
    link_type: LinkType | list[LinkType] | None = None
    virtual: bool = False


class FpgaEntry(_Strict, frozen=True):
    """FPGAs. `layout`: `dfl` (in-tree), `opae`, `xrt` (xclmgmt and user functions) or `xdma`; any where not given.

    `afu` and `region` are interface ids as the kernel writes them. `nodes`: `port`, `fme`, `user`, `mgmt`, `qdma`; what
    a user of the FPGA needs where not given: ports, user functions and their queues.
    """

    layout: Literal["dfl", "opae", "xrt", "xdma"] | None = None
    afu: Texts | None = None
    region: Texts | None = None
    vendor: Ids | None = None
    device: Ids | None = None
    address: Texts | None = None
    nodes: tuple[Literal["port", "fme", "user", "mgmt", "qdma"], ...] = ("port", "user", "qdma")


class DrmEntry(_Strict, frozen=True):
    """GPUs and accelerators with nodes under /dev/dri or /dev/accel; AMD's get /dev/kfd too.

    `nodes`: `render`, `card`, `accel`, `kfd`.
    """

    vendor: Ids | None = None
    device: Ids | None = None
    driver: Texts | None = None
    address: Texts | None = None
    nodes: tuple[Literal["render", "card", "accel", "kfd"], ...] = ("render", "card", "accel", "kfd")


class NvmeEntry(_Strict, frozen=True):
    """NVMe namespaces, each one a device; those in use (mounted, swap, a part of something) only if `dangerous`.

    `nodes`: `block` (/dev/nvme0n1), `generic` (/dev/ng0n1), `control` (/dev/nvme0, the whole controller).
    """

    model: Texts | None = None
    serial: Texts | None = None
    transport: Texts | None = None
    address: Texts | None = None
    nodes: tuple[Literal["block", "generic", "control"], ...] = ("block",)


class GroupEntry(_Strict, frozen=True):
    """Several nodes that are one device.

    `by` says which belong together: `order` (the first of every path, the second of every path, …), `parent` (those of
    one piece of hardware, such as the camera and the microphone of one USB device), or `all`. `count` is that of the
    resource where not given.
    """

    paths: list[AbsolutePath | PathEntry] = []
    usb: UsbEntry | list[UsbEntry] = []
    by: Literal["order", "parent", "all"] = "order"
    count: Count | None = None


class HealthEntry(_Strict, frozen=True):
    """One check of every device, in both directions: `failures` in a row make it Unhealthy, `successes` Healthy again.

    Exactly one of: `link: up` (network, RDMA) · `driver` (bound to this one, or to any: `"*"`) · `file` with one of
    `equals`, `not`, `below`, `above` (a path, or one relative to the device's directory in /sys) · `http` (any status
    below 400 is good) · `command` (exit status 0 is good). Templates are filled in.
    """

    link: Literal["up"] | None = None
    driver: str | None = None
    file: str | None = None
    equals: Texts | None = None
    not_: Texts | None = msgspec.field(name="not", default=None)
    below: float | None = None
    above: float | None = None
    http: str | None = None
    command: list[str] | None = None
    every: Seconds = 10.0
    timeout: Seconds = 5.0
    failures: Times = 2
    successes: Times = 2


class GenericOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How devices are handed out.

    `count`: how many containers may have each device at a time. `together`: all that is found is one device.
    `exclusive`: resources further down in the file do not get these devices. `ids`: `stable`, or those that another
    plugin would have made, so that running pods keep theirs. `remap`: host path (a pattern) to path in the container.
    `topology`: tell the kubelet of NUMA nodes. `cdi`: hand out by CDI names. `info`: more for PCIDEVICE_…_INFO, by
    address or for all (`"*"`). `dangerous`: also what may take over the node.
    """

    count: Count | None = None
    together: bool = False
    exclusive: bool = False
    ids: Literal["stable", "gdp", "index"] = "stable"
    permissions: Permissions = "rw"
    env: dict[str, str] = {}
    annotations: dict[str, str] = {}
    remap: dict[AbsolutePath, str] = {}
    health: HealthEntry | list[HealthEntry] = []
    topology: bool = True
    cdi: bool = False
    info: dict[str, dict[str, str]] = {}
    dangerous: bool = False


class GenericKeys(GenericOptions, frozen=True):
    """The keys of a resource: one that says what to look for, and the options."""

    paths: list[AbsolutePath | PathEntry] | None = None
    usb: UsbEntry | list[UsbEntry] | None = None
    pci: PciEntry | list[PciEntry] | None = None
    rdma: RdmaEntry | list[RdmaEntry] | None = None
    net: NetEntry | list[NetEntry] | None = None
    fpga: FpgaEntry | list[FpgaEntry] | None = None
    drm: DrmEntry | list[DrmEntry] | None = None
    nvme: NvmeEntry | list[NvmeEntry] | None = None
    groups: list[GroupEntry] | None = None
