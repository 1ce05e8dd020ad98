"""The key `expect` of a resource: how many devices, and of which model, a node should have."""

from typing import Annotated

import msgspec

from plugwright.errors import InvalidSetting
from plugwright.sdk.device_family import FamilySettings
from plugwright.sdk.serve_settings import Expectation

__all__ = ["ExpectEntry", "ExpectValue", "expectation"]

_Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
_Model = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class ExpectEntry(FamilySettings, frozen=True, rename="camel"):
    """The devices that every node with this file should have.

    `count` is the exact number, `min` and `max` a range. `model` is a pattern for the model of every device, `*` and
    `?` as in cordons. With `notReady`, a node with other devices is not ready, which stops a rollout there.
    """

    count: _Count | None = None
    min: _Count | None = None
    max: _Count | None = None
    model: _Model | None = None
    not_ready: bool = False


ExpectValue = _Count | ExpectEntry


def expectation(value: int | ExpectEntry | None, is_template: bool) -> Expectation | None:
    """The expectation in the file; raises `InvalidSetting` if it contradicts itself."""
    if value is None:
        return None
    if is_template:
        raise InvalidSetting("expect needs a literal resource name", "expect")
    if isinstance(value, int):
        return Expectation(least=value, most=value)
    if value.count is not None and (value.min is not None or value.max is not None):
        raise InvalidSetting("expect must have count, or min and max, got both", "expect.count")
    if value.count is None and value.min is None and value.max is None and value.model is None:
        raise InvalidSetting("expect must have count, min, max or model", "expect")
    least = value.count if value.count is not None else value.min
    most = value.count if value.count is not None else value.max
    if least is None:
        least = 1 if value.model is not None and most is None else 0
    if most is not None and most < least:
        raise InvalidSetting(f"max must be at least min ({least}), got {most}", "expect.max")
    return Expectation(least=least, most=most, model=value.model or "", not_ready=value.not_ready)
