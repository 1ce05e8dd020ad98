"""An error names whose fault it is and carries its facts; every exception of the tree lives in errors.py."""

import builtins
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from plugwright import errors
from plugwright.errors import (
    ConfigError,
    InvalidValue,
    ListTooLarge,
    MalformedMessage,
    PathTooLong,
    PeerRefused,
    PluginError,
    PluginFailed,
    PluginTimeout,
    PlugwrightError,
    ProtocolError,
    RepeatedDevice,
    UnhealthyDevice,
    UnknownDevice,
)
from plugwright.text import line_of

PACKAGE = Path(errors.__file__).parent
CLASS = re.compile(r"^ *class (\w+)\(([^)]*)\)", re.MULTILINE)
_WIRE = "never leaves protocol: grpc_errors makes a PlugwrightError of it"
_CEL = "never leaves allocator.cel: a SelectorError is made of it"
_SELECTOR = "an answer of allocator.cel, which its callers turn into a refusal or a reason"
ELSEWHERE: Mapping[str, str] = {
    "BudgetExhausted": _CEL,
    "EvaluationError": _CEL,
    "InvalidExpression": _CEL,
    "MacroError": _CEL,
    "RegexError": _CEL,
    "SelectorError": _SELECTOR,
    "SelectorTooCostly": _SELECTOR,
    "BrokenExchange": _WIRE,
    "ConnectionFault": _WIRE,
    "GrpcError": _WIRE,
    "HeadersTooLarge": _WIRE,
    "HpackError": _WIRE,
    "ClaimsRejected": "never leaves cluster.scheduling: carries the event that a waiting pod gets",
    "NewerVersion": "raised by a StateFormat to its StateFile, which makes a StateFileNewer of it",
    "StreamFault": _WIRE,
    "TimeLimitExceeded": "never leaves plugins.nvidia.topology: ends an exact search, and a faster one answers",
    "_CannotExpand": "never leaves its module",
    "_Reinstalled": "never leaves its module",
    "_Unparsable": "never leaves its module",
    "_Unreachable": "never leaves its module",
}

FAULTS: dict[type[PlugwrightError], list[type[PlugwrightError]]] = {
    ConfigError: [PathTooLong],
    PluginError: [InvalidValue, ListTooLarge, PluginFailed, PluginTimeout],
    ProtocolError: [UnknownDevice, UnhealthyDevice, RepeatedDevice, MalformedMessage],
}


def classes() -> Iterator[tuple[str, Path, set[str]]]:
    """Each class of the package that has bases, with its file and their names."""
    for path in PACKAGE.rglob("*.py"):
        for name, bases in CLASS.findall(path.read_text()):
            yield name, path, {base.strip().rpartition(".")[2] for base in bases.split(",")}


@cache
def exceptions() -> dict[str, Path]:
    """Each exception of the package, and the file that defines it."""
    every, found = [*classes()], dict[str, Path]()
    names = {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)}
    while new := {name: path for name, path, bases in every if bases & names and name not in found}:
        found |= new
        names |= new.keys()
    return found


def test_every_exception_of_the_tree_is_in_errors_but_those_with_a_reason() -> None:
    assert {name for name, path in exceptions().items() if path != PACKAGE / "errors.py"} == ELSEWHERE.keys()


def test_every_exception_of_errors_is_ours_public_and_drawn_in_the_tree() -> None:
    names = {name for name in vars(errors) if name in exceptions() and not name.startswith("_")}
    assert names == set(errors.__all__)
    assert not [name for name in names if not issubclass(getattr(errors, name), PlugwrightError)]
    assert errors.__doc__ is not None
    assert not [name for name in names if f" {name}" not in errors.__doc__.replace("\n", " ")]


@pytest.mark.parametrize(("fault", "kinds"), FAULTS.items(), ids=[fault.__name__ for fault in FAULTS])
def test_an_error_tells_whose_fault_it_is(fault: type[PlugwrightError], kinds: list[type[PlugwrightError]]) -> None:
    assert [kind for kind in kinds if not issubclass(kind, fault)] == []
    others = [other for other in FAULTS if other is not fault]
    assert [kind for kind in kinds if issubclass(kind, tuple(others))] == []


def test_a_value_that_cannot_be_is_a_value_error_too() -> None:
    assert issubclass(InvalidValue, ValueError)


def test_unknown_devices_are_named() -> None:
    error = UnknownDevice("example.com/tape", ["st8", "st9"])
    assert str(error) == "example.com/tape has no device 'st8', 'st9'"
    assert (error.resource, error.device_ids) == ("example.com/tape", ("st8", "st9"))


def test_of_many_devices_the_first_are_named_and_the_rest_counted() -> None:
    assert str(RepeatedDevice("a/b", [f"st{number}" for number in range(60_000)])).endswith("'st7' and 59992 more")


def test_unhealthy_devices_are_named_with_their_reasons() -> None:
    error = UnhealthyDevice("a/b", {"st0": "no tape", "st1": ""})
    assert str(error) == "unhealthy in a/b: 'st0' (no tape), 'st1' (no reason given)"
    assert error.reasons == {"st0": "no tape", "st1": ""}


def test_a_list_too_large_is_counted_and_measured() -> None:
    error = ListTooLarge("a/b", 60_000, 5_000_000, 4_194_304)
    assert str(error) == "a/b lists 60000 devices in 5000000 bytes, the kubelet accepts 4194304 bytes in one message"


def test_a_failure_of_the_plugin_says_which_method_and_why() -> None:
    assert str(PluginFailed("a/b", "allocate", OSError("bus error"))) == "allocate() of a/b failed: OSError: bus error"
    assert str(PluginFailed("a/b", "allocate", KeyError())) == "allocate() of a/b failed: KeyError"


def test_a_plugin_that_hangs_is_named_with_its_limit() -> None:
    assert str(PluginTimeout("a/b", "allocate", 0.5)) == "allocate() of a/b did not end within 0.5 s"


def test_a_path_too_long_is_measured_in_bytes() -> None:
    text = "/run/ü is too deep for a socket: with a name of 4 bytes its path has 12, the kernel allows 10"
    assert str(PathTooLong("/run/ü/tape", 10)) == text


def test_the_name_in_a_path_too_long_is_measured_in_bytes_too() -> None:
    assert "with a name of 2 bytes its path has 7" in str(PathTooLong("/run/ü", 5))


@pytest.mark.parametrize(
    ("code", "message", "text"),
    [("UNKNOWN", "no", "no (UNKNOWN)"), ("UNKNOWN", "", "UNKNOWN"), ("", "no", "no"), ("", "", "")],
)
def test_a_refusal_shows_what_there_is(code: str, message: str, text: str) -> None:
    assert str(PeerRefused(code, message)) == text


def test_an_error_is_one_line_whatever_the_plugin_raised() -> None:
    assert len(str(PluginFailed("a/b", "discover", OSError("command failed:\nno such card"))).splitlines()) == 1


def test_a_cause_that_cannot_be_printed_is_still_named() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError("a mistake in the author's own exception")

    assert "Unprintable" in str(PluginFailed("a/b", "discover", Unprintable()))


def test_the_line_of_an_error_is_the_authors_and_not_that_of_a_library() -> None:
    def read() -> None:
        json.loads("{")

    with pytest.raises(json.JSONDecodeError) as caught:
        read()
    line = read.__code__.co_firstlineno + 1
    assert line_of(caught.value) == f"tests/test_errors.py:{line} in read"
    assert str(PluginFailed("example.com/tape", "discover", caught.value)).endswith(f" at {line_of(caught.value)}")


def test_an_error_that_was_never_raised_has_no_line() -> None:
    assert line_of(OSError("x")) == ""
    assert str(PluginFailed("a/b", "discover", OSError("x"))) == "discover() of a/b failed: OSError: x"
