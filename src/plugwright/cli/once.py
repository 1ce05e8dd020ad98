"""`plugwright run --once`: prints the lists and answers that a daemon would send. Daemons do not load it."""

import json
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from plugwright.cli.output import document_printed
from plugwright.config.dry_run import DryDevice, DryResource, dry_run
from plugwright.config.schema import Config
from plugwright.model import Allocation, DeviceNode, Mount
from plugwright.system.directories import short_directory

__all__ = ["show"]


def show(config: Config, style: str, limit: float) -> int:
    """Prints as text, JSON or YAML; returns the exit code, which is 1 if a resource or an Allocate would fail."""
    with short_directory() as directory:
        report = dry_run(config, directory, limit)
    resources = [_resource_fields(resource) for resource in report.resources]
    fields = {"resources": resources, "refused_names": dict(sorted(report.refused_names.items()))}
    if not document_printed(msgspec.to_builtins(fields, enc_hook=str), style):
        for resource in report.resources:
            click.echo("\n".join(_resource_lines(resource)))
        for name, reason in sorted(report.refused_names.items()):
            click.echo(f"{name}  {click.style('not served', fg='red')}: {reason}")
    return 0 if report.succeeded else 1


def _resource_fields(resource: DryResource) -> dict[str, Any]:
    return {
        "name": resource.name,
        "error": resource.error,
        "idle": resource.idle,
        "empty": resource.empty,
        "devices": [_device_fields(device) for device in resource.devices],
    }


def _device_fields(listed: DryDevice) -> dict[str, Any]:
    device = listed.device
    return {
        "id": device.id,
        "health": device.health.value,
        "reason": device.reason,
        "numa": list(device.numa),
        "attributes": dict(device.attributes),
        "capacity": {name: capacity.value for name, capacity in device.capacity.items()},
        "allocation": _allocation_fields(listed.allocation) if listed.allocation is not None else None,
        "error": listed.error,
    }


def _allocation_fields(allocation: Allocation) -> dict[str, Any]:
    return {
        "env": dict(sorted(allocation.env.items())),
        "mounts": [_fields(mount) for mount in allocation.mounts],
        "nodes": [_fields(node) for node in allocation.nodes],
        "annotations": dict(sorted(allocation.annotations.items())),
        "cdi": list(allocation.cdi),
    }


def _fields(part: Mount | DeviceNode) -> dict[str, object]:
    return {name: getattr(part, name) for name in part.__match_args__}


def _resource_lines(resource: DryResource) -> Iterator[str]:
    healthy = sum(device.device.healthy for device in resource.devices)
    yield f"{click.style(resource.name, bold=True)}  {healthy} of {len(resource.devices)} healthy"
    for key, text in (("idle", resource.idle), ("empty", resource.empty)):
        if text:
            yield f"  {key}: {text}"
    if resource.error:
        yield f"  {click.style('error', fg='red')}: {resource.error}"
    for listed in resource.devices:
        device = listed.device
        numa = f", NUMA {','.join(map(str, device.numa))}" if device.numa else ""
        yield f"  {device.id}  {device.health.value}{f': {device.reason}' if device.reason else ''}{numa}"
        if listed.error and device.healthy:
            yield f"    {click.style('error', fg='red')}: {listed.error}"
        if listed.allocation is not None:
            yield from (f"    {line}" for line in _allocation_lines(listed.allocation))


def _allocation_lines(allocation: Allocation) -> Iterator[str]:
    for name, value in sorted(allocation.env.items()):
        yield f"env {name}={json.dumps(value, ensure_ascii=False)}"
    for mount in allocation.mounts:
        yield f"mount {mount.host_path} at {mount.container_path}{', read-only' if mount.read_only else ''}"
    for node in allocation.nodes:
        yield f"node {node.host_path} at {node.container_path}, {node.permissions}"
    for name, value in sorted(allocation.annotations.items()):
        yield f"annotation {name}={json.dumps(value, ensure_ascii=False)}"
    for name in allocation.cdi:
        yield f"cdi {name}"
