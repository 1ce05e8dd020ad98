"""DRA names for resource names and device ids; the same text always gets the same name.

An invalid name gets a digest of the original, so two originals never share a name.
"""

import re

from plugwright.errors import ConfigError
from plugwright.grammars import DNS_LABEL, DNS_SUBDOMAIN
from plugwright.system.cpython import sha256

__all__ = ["check_driver_name", "class_name", "device_name", "driver_domain", "driver_name"]

_LIMIT = 63  # bytes of a driver's name, of a label and of a device's name
_DIGEST = 9  # a dash and eight digits
_NOT_OURS = ("gpu.nvidia.com", "compute-domain.nvidia.com")  # the drivers that NVIDIA publishes
_DOMAINS = {"nvidia.com": "nvidia.plugwright.dev"}  # for resources of vendors that publish their own drivers


def driver_name(resource: str) -> str:
    """The DRA driver of a resource: `tape.example.com` for `example.com/tape`."""
    name, domain = resource.partition("/")[2], driver_domain(resource)
    label = name if _is_label(name) else _with_digest(name, name)
    full = f"{label}.{domain}"
    return full if len(full) <= _LIMIT else _with_digest(full, resource, keep=".")


def driver_domain(resource: str) -> str:
    """The end of the driver's name."""
    domain = resource.partition("/")[0]
    return _DOMAINS.get(domain, domain)


def class_name(resource: str) -> str:
    """The DeviceClass for all devices of a resource's driver."""
    return driver_name(resource)


def device_name(device_id: str) -> str:
    """The device in ResourceSlices and claims: its id, if that is a DNS label."""
    return device_id if _is_label(device_id) else _with_digest(device_id, device_id)


def check_driver_name(name: str) -> str:
    """Raises `ConfigError` for an unusable driver name."""
    labels = name.split(".")
    if not DNS_SUBDOMAIN.fullmatch(name) or len(name) > _LIMIT or max(map(len, labels)) > _LIMIT:
        raise ConfigError(f"driver must be a DNS name of at most {_LIMIT} bytes, as tape.example.com, got {name!r}")
    if name in _NOT_OURS:
        raise ConfigError(f"driver must not be {name}: that is NVIDIA's own DRA driver")
    return name


def _is_label(text: str) -> bool:
    return DNS_LABEL.fullmatch(text) is not None


def _with_digest(text: str, original: str, keep: str = "") -> str:
    readable = re.sub(f"[^a-z0-9{re.escape(keep)}]+", "-", text.lower())[: _LIMIT - _DIGEST].strip("-.")
    digest = sha256(original.encode())[: _DIGEST - 1]  # Helm templates can compute it too
    return f"{readable}-{digest}" if readable else digest
