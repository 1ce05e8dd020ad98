"""The key `serve` of a resource: through which API its devices are offered.

One word, or a mapping with the word in `api`. What the settings mean is `sdk.serve_settings`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from plugwright.errors import ConfigError, InvalidSetting
from plugwright.sdk.device_family import FamilySettings, ResourceEntry
from plugwright.sdk.driver_names import check_driver_name, driver_name
from plugwright.sdk.serve_settings import ServeMode, ServeSettings, Split, TaintSettings

__all__ = ["ServeEntry", "ServeValue", "driver_of", "serve_settings", "serve_value"]

_Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
_Value = str | int | bool


class SplitEntry(FamilySettings, frozen=True):
    """Which devices claims have at first: so many of them, or those with these attributes."""

    dra: _Count | None = None
    attributes: dict[str, _Value | tuple[_Value, ...]] = msgspec.field(default_factory=dict)


class TaintsEntry(FamilySettings, frozen=True):
    """The taint of an Unhealthy device."""

    effect: Literal["NoSchedule", "NoExecute", "None"] = "NoSchedule"
    grace: _Seconds = TaintSettings().grace
    budget: _Count = TaintSettings().budget


class ServeEntry(FamilySettings, frozen=True, rename="camel"):
    """How a resource is served, in the form of a mapping.

    With `both` and without a split, `keepFree` is 1, so that neither API runs out of devices while the other has some.
    """

    api: ServeMode
    driver: str = ""
    split: SplitEntry | None = None
    keep_free: _Count | None = None
    taints: TaintsEntry | None = None


ServeValue = ServeMode | ServeEntry


def serve_settings(value: ServeValue, is_template: bool) -> ServeSettings:
    """The settings in the file; raises `InvalidSetting` if they contradict each other."""
    if isinstance(value, ServeMode):
        value = ServeEntry(api=value)
    _check(value, is_template)
    keep_free = value.keep_free
    if keep_free is None:
        keep_free = int(value.api is ServeMode.BOTH and value.split is None)
    split, taints = value.split or SplitEntry(), value.taints or TaintsEntry()
    if value.driver:
        try:
            check_driver_name(value.driver)
        except ConfigError as error:
            raise InvalidSetting(str(error), "serve.driver") from error
    return ServeSettings(
        api=value.api,
        driver=value.driver,
        split=Split(
            dra=split.dra,
            attributes={key: _texts(wanted) for key, wanted in sorted(split.attributes.items())},
            keep_free=keep_free,
        ),
        taints=TaintSettings(effect=taints.effect, grace=taints.grace, budget=taints.budget),
    )


def driver_of(entry: ResourceEntry[Any]) -> str:
    """The DRA driver of a resource; empty if it has none, or if the machine decides its name."""
    if entry.serve.api is ServeMode.DEVICE_PLUGIN or entry.is_template:
        return ""
    return entry.serve.driver or driver_name(entry.name)


def serve_value(serve: ServeSettings) -> Mapping[str, object]:
    """Every value in force, as the file would have it, for `--print-config`."""
    return {
        "serve.api": serve.api.value,
        "serve.driver": serve.driver,
        "serve.split.dra": serve.split.dra,
        "serve.split.attributes": {key: list(texts) for key, texts in serve.split.attributes.items()},
        "serve.keepFree": serve.split.keep_free,
        "serve.taints.effect": serve.taints.effect,
        "serve.taints.grace": serve.taints.grace,
        "serve.taints.budget": serve.taints.budget,
    }


def _check(value: ServeEntry, is_template: bool) -> None:
    has_claims, is_both = value.api is not ServeMode.DEVICE_PLUGIN, value.api is ServeMode.BOTH
    for key, given, allowed, needs in (
        ("driver", value.driver, has_claims, "dra or both"),
        ("taints", value.taints, has_claims, "dra or both"),
        ("split", value.split, is_both, "both"),
        ("keepFree", value.keep_free, is_both, "both"),
    ):
        if given and not allowed:
            raise InvalidSetting(f"{key} needs api: {needs}", f"serve.{key}")
    if value.driver and is_template:
        raise InvalidSetting("driver needs a literal resource name", "serve.driver")
    if value.split is not None and value.split.attributes and value.split.dra is not None:
        raise InvalidSetting("split must have a number or attributes, got both", "serve.split")


def _texts(value: _Value | tuple[_Value, ...]) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)
