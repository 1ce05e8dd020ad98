"""The CDI devices of a container without a runtime: their edits, applied as by a container runtime."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from plugwright.errors import InvalidValue
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.protocol.messages import DeviceSpec, MountSpec
from plugwright.sdk.cdi import DYNAMIC, STATIC, ContainerEdits
from plugwright.sdk.cdi.resolution import edits_for

__all__ = ["apply_cdi_devices", "with_node_cdi_devices"]


def apply_cdi_devices(
    granted: RunContainerOptions, directories: Sequence[Path]
) -> tuple[RunContainerOptions, list[str]]:
    """The options with those of the CDI devices, and unsupported edits; InvalidValue for an unknown name."""
    if not granted.cdi:
        return granted, []
    all_edits = edits_for(granted.cdi, directories)
    nodes = [
        DeviceSpec(node.host_path or node.path, node.path, node.permissions or "rw")
        for edits in all_edits
        for node in edits.device_nodes
    ]
    mounts = [
        MountSpec(mount.host_path, mount.container_path or mount.host_path, "ro" in mount.options)
        for edits in all_edits
        for mount in edits.mounts
    ]
    env = {name: text for edits in all_edits for name, text in edits.env.items()}
    # A CDI device overrides the pod's own variables, because the runtime applies it last.
    applied = replace(
        granted, env={**granted.env, **env}, mounts=(*granted.mounts, *mounts), nodes=(*granted.nodes, *nodes)
    )
    return applied, sorted({text for edits in all_edits for text in _not_applied(edits)})


def with_node_cdi_devices(granted: RunContainerOptions, kubelet_root: Path) -> RunContainerOptions:
    """The options, with the edits of CDI devices with a spec on the node or on this machine; others stay names."""
    try:
        return apply_cdi_devices(granted, [STATIC, DYNAMIC, kubelet_root / "cdi"])[0]
    except InvalidValue:
        return granted


def _not_applied(edits: ContainerEdits) -> Iterator[str]:
    for what, is_there in (
        ("hooks", edits.hooks),
        ("network devices", edits.net_devices),
        ("Intel RDT", edits.intel_rdt),
        ("additional groups", edits.additional_gids),
    ):
        if is_there:
            yield f"{what} of CDI devices are not applied"
