"""The features of an allocation, and the differences between Kubernetes 1.36 and 1.37, as data.

Names are those of upstream's feature gates. The allocator asks `Features` for a behaviour, never for a version.
"""

from collections.abc import Iterable

from msgspec import Struct

from plugwright.errors import ConfigError, FeatureUnsupported

__all__ = ["ALPHA_FEATURES", "Features", "features_of"]

ADMIN_ACCESS = "DRAAdminAccess"
BINDING_CONDITIONS = "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus"
CONSUMABLE_CAPACITY = "DRAConsumableCapacity"
DEVICE_TAINTS = "DRADeviceTaints"
FRACTIONAL_RANGES = "DRAFractionalCapacityRange"
PARTITIONABLE_DEVICES = "DRAPartitionableDevices"
PRIORITIZED_LIST = "DRAPrioritizedList"
ALPHA_FEATURES = (
    "DRADerivedAttributes",
    "DRADeviceCompatibilityGroups",
    "DRAListTypeAttributes",
    "DRAOptionalNodeOperations",
)

_IN_1_36 = frozenset(
    {ADMIN_ACCESS, BINDING_CONDITIONS, CONSUMABLE_CAPACITY, DEVICE_TAINTS, PARTITIONABLE_DEVICES, PRIORITIZED_LIST}
)
_DEFAULTS = {"1.36": _IN_1_36, "1.37": _IN_1_36 | {FRACTIONAL_RANGES}}
_KNOWN = {*_IN_1_36, FRACTIONAL_RANGES, "DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"}


class Features(Struct, frozen=True):
    """The features that an allocation can use. The defaults are those of 1.37 with all features off.

    A device with binding conditions is refused when it would be chosen, because the embedded scheduler does not wait
    for conditions. Without `binding_conditions` such a device is skipped, as upstream does.
    """

    admin_access: bool = False
    binding_conditions: bool = False
    consumable_capacity: bool = False
    device_taints: bool = False
    fractional_ranges: bool = False
    partitionable_devices: bool = False
    prioritized_list: bool = False
    # A slice with counter sets belongs to its pool on every node, not only on nodes with devices of the pool.
    counters_on_every_node: bool = False
    # distinctAttribute compares with the last device of each request, not with every device.
    distinct_from_last: bool = False
    # A configuration is repeated for every request that it names, and keeps their names if it names all of them.
    repeats_configuration: bool = False
    # `All` passes over devices without remaining capacity, instead of failing because of them.
    all_skips_full_devices: bool = False
    # A capacity that cannot be computed excludes its device, instead of ending the allocation.
    skips_invalid_capacity: bool = False
    # A capacity that is rounded up to a step is written with a binary suffix, not as the step is.
    rounds_to_binary: bool = False
    # The counters of a shared device are charged again unless its shares have consumed capacity.
    shares_without_capacity_count_again: bool = False
    # The error of a selector does not say which device it was evaluated for.
    selector_errors_omit_device: bool = False


def features_of(version: str = "1.37", names: Iterable[str] | None = None) -> Features:
    """The features that a Kubernetes version enables by default, or exactly those of `names` as that version has them.

    Raises `FeatureUnsupported` for an alpha feature, and for one that is unknown.
    """
    minor = ".".join(version.removeprefix("v").split(".")[:2])
    if minor not in _DEFAULTS:
        raise ConfigError(f"claims are allocated as in Kubernetes {' or '.join(_DEFAULTS)}, got {version!r}")
    enabled = _DEFAULTS[minor] if names is None else frozenset(names)
    for name in sorted(map(str, enabled)):
        if name in ALPHA_FEATURES:
            raise FeatureUnsupported(name, f"{name} is an alpha feature, which is not supported")
        if name not in _KNOWN:
            raise FeatureUnsupported(name, f"{name} is not a known feature of allocations")
    old = minor == "1.36"
    return Features(
        admin_access=ADMIN_ACCESS in enabled,
        binding_conditions=bool(enabled & {BINDING_CONDITIONS, "DRADeviceBindingConditions"}),
        consumable_capacity=CONSUMABLE_CAPACITY in enabled,
        device_taints=DEVICE_TAINTS in enabled,
        fractional_ranges=FRACTIONAL_RANGES in enabled,
        partitionable_devices=PARTITIONABLE_DEVICES in enabled,
        prioritized_list=PRIORITIZED_LIST in enabled,
        counters_on_every_node=old,
        distinct_from_last=old,
        repeats_configuration=old,
        all_skips_full_devices=old,
        skips_invalid_capacity=old,
        rounds_to_binary=old,
        shares_without_capacity_count_again=old,
        selector_errors_omit_device=old,
    )
