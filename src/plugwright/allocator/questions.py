"""Questions to the allocator as JSON, for `python -m plugwright.allocator`.

A question has `features` (names; null for none; absent for the defaults of `version`), `node`, `classes`, `slices`,
`claims`, and the allocated devices: `allocated` (`driver/pool/device`), `allocatedShared` (with `/shareID`) and
`allocatedCapacity` (amounts by device). The answer has `results`, with `reasons` if there are none, or `error`, or
`unsupported`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from plugwright.allocator.allocated_state import AllocatedState
from plugwright.allocator.claim_allocator import ClaimAllocator
from plugwright.allocator.consumable_capacity import amount
from plugwright.allocator.features import features_of
from plugwright.allocator.published_slices import DeviceId, SliceIndex
from plugwright.errors import AllocationAborted, ConfigError, FeatureUnsupported, PlugwrightError
from plugwright.text import clean

__all__ = ["answer", "answer_line"]

_KEYS = {
    "name", "version", "features", "node", "classes", "slices", "claims", "allocated", "allocatedShared",
    "allocatedCapacity", "results", "error",
}  # fmt: skip
_OBJECTS = list, "a list of objects"
_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "version": (str, "a string such as 1.37"), "features": (list, "a list of feature gates"),
    "node": ((str, dict), "a Node or its name"), "classes": _OBJECTS, "slices": _OBJECTS, "claims": _OBJECTS,
    "allocated": (list, "a list of devices"), "allocatedShared": (list, "a list of shares"),
}  # fmt: skip


def answer_line(line: bytes) -> bytes:
    """The answer to one line; a malformed line has an `error`."""
    try:
        question = msgspec.json.decode(line)
        reply = answer(question) if isinstance(question, dict) else {"error": "a question must be a JSON object"}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reply = {"error": f"a question must be a JSON object: {error}"}
    except RecursionError:
        reply = {"error": "a question must be a JSON object: it is nested too deeply"}
    return msgspec.json.encode(reply)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _answer(question)
    except FeatureUnsupported as error:
        return {"unsupported": error.feature, "message": str(error)}
    except AllocationAborted as error:
        return {"error": str(error), **({"reasons": error.reasons} if error.reasons else {})}
    except PlugwrightError as error:
        return {"error": str(error)}
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        return {"error": f"malformed objects: {type(error).__name__}: {error}"}


def _answer(question: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(question.keys() - _KEYS)
    if unknown:
        return {"unsupported": unknown[0], "message": f"the key {unknown[0]} of a question is not supported"}
    for key, (kind, text) in _TYPES.items():
        if question.get(key) is not None and not isinstance(question[key], kind):
            raise ConfigError(f"{key} must be {text}, got {clean(repr(question[key]), limit=100)}")
    if "claims" not in question:
        raise ConfigError("a question must have claims")
    names = question["features"] or () if "features" in question else None
    features = features_of(question.get("version") or "1.37", names)
    node = question.get("node") or {}
    index = SliceIndex(question.get("slices") or ())
    state = _state(question, _known_devices(index))
    allocator = ClaimAllocator(features, index, question.get("classes") or (), state)
    outcome = allocator.allocate(
        {"metadata": {"name": node}} if isinstance(node, str) else node, question["claims"] or ()
    )
    return {"results": outcome.results} if outcome.results else {"results": [], "reasons": outcome.reasons}


def _known_devices(index: SliceIndex) -> set[DeviceId]:
    return {
        (slice_.driver, slice_.pool, device["name"])
        for slices in index.by_pool.values()
        for slice_ in slices
        for device in slice_.spec.get("devices") or ()
    }


def _state(question: Mapping[str, Any], known: set[DeviceId]) -> AllocatedState:
    state = AllocatedState()
    for entry in question.get("allocated") or ():
        state.devices.add(_device(entry, known))
    for entry in question.get("allocatedShared") or ():
        device, share = _shared_device(entry, known)
        state.shares.setdefault(device, set()).add(share)
    for entry, amounts in _capacities(question.get("allocatedCapacity")):
        state.capacity[_device(entry, known)] = {name: amount(str(text)).value for name, text in amounts.items()}
    return state


def _capacities(listed: Any) -> Iterable[tuple[Any, Mapping[str, Any]]]:
    """By device, or as a list of objects with driver, pool, device and `capacity` or `consumedCapacity`."""
    if isinstance(listed, Mapping):
        yield from listed.items()
        return
    for entry in listed or ():
        yield entry, entry.get("consumedCapacity") or entry.get("capacity") or {}


def _device(entry: Any, known: set[DeviceId]) -> DeviceId:
    """`driver/pool/device`, in which the pool can contain slashes; or an object with these keys."""
    if isinstance(entry, Mapping):
        return entry["driver"], entry["pool"], entry["device"]
    driver, _, rest = str(entry).partition("/")
    pool, _, device = rest.rpartition("/")
    if not pool:
        raise AllocationAborted(f"an allocated device must be driver/pool/device, got {entry!r}")
    return driver, pool, device


def _shared_device(entry: Any, known: set[DeviceId]) -> tuple[DeviceId, str]:
    if isinstance(entry, Mapping):
        return _device(entry, known), entry.get("shareID") or ""
    device, _, share = str(entry).rpartition("/")
    if device.count("/") < 2 or _device(entry, known) in known:  # no share id
        return _device(entry, known), ""
    return _device(device, known), share
