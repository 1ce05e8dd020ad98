"""Probes and lifecycle hooks of containers: one handler each, within its limits."""

import re
from collections.abc import Callable, Iterator

from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, forbidden, invalid, invalid_for, required, unsupported

__all__ = ["PROBES", "lifecycle_errors", "port_errors", "port_name_errors", "probe_errors"]

PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_TIMES = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_LARGEST_PORT, _LONGEST_PORT_NAME = 65_535, 15
_HEADER = re.compile(r"[-A-Za-z0-9]+")
_HEADER_RULE = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for "
    "validation is '[-A-Za-z0-9]+')"
)


def probe_errors(field: str, kind: str, probe: Object, grace_period: int) -> Iterator[FieldError]:
    """`kind` is the name of the container's field, one of `PROBES`."""
    yield from _handler_errors(field, probe, grace_period, hook=False)
    for name in _TIMES:
        if probe.get(name, 0) < 0:
            yield invalid(f"{field}.{name}", probe[name], "must be greater than or equal to 0")
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        yield invalid(f"{field}.terminationGracePeriodSeconds", grace, "must be greater than 0")
    if kind == "readinessProbe":
        if grace is not None:
            yield invalid(f"{field}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
    elif probe.get("successThreshold", 1) != 1:
        yield invalid(f"{field}.successThreshold", probe["successThreshold"], "must be 1")


def lifecycle_errors(field: str, lifecycle: Object, grace_period: int) -> Iterator[FieldError]:
    for hook in ("postStart", "preStop"):
        if lifecycle.get(hook) is not None:
            yield from _handler_errors(f"{field}.{hook}", lifecycle[hook], grace_period, hook=True)


def _handler_errors(field: str, handlers: Object, grace_period: int, *, hook: bool) -> Iterator[FieldError]:
    rules: dict[str, Callable[[str, Object], Iterator[FieldError]]] = {
        "exec": _exec_errors,
        "httpGet": _http_errors,
        "tcpSocket": lambda place, action: port_errors(f"{place}.port", action.get("port")),
    }
    if not hook:
        rules["grpc"] = lambda place, action: port_errors(f"{place}.port", action.get("port"))
    else:
        rules["sleep"] = lambda place, action: _sleep_errors(place, int(action.get("seconds") or 0), grace_period)
    given = [name for name in rules if handlers.get(name) is not None]
    if not given:
        yield required(field, "must specify a handler type")
    for name in given[:1]:
        yield from rules[name](f"{field}.{name}", handlers[name])
    for name in given[1:]:
        yield forbidden(f"{field}.{name}", "may not specify more than 1 handler type")


def _exec_errors(field: str, action: Object) -> Iterator[FieldError]:
    if not action.get("command"):
        yield required(f"{field}.command")


def _http_errors(field: str, action: Object) -> Iterator[FieldError]:
    yield from port_errors(f"{field}.port", action.get("port"))
    yield from unsupported(f"{field}.scheme", action.get("scheme") or "HTTP", ("HTTP", "HTTPS"))
    for header in action.get("httpHeaders") or []:
        name = str(header.get("name") or "")
        if not _HEADER.fullmatch(name):
            yield invalid(f"{field}.httpHeaders", name, _HEADER_RULE)


def _sleep_errors(field: str, seconds: int, grace_period: int) -> Iterator[FieldError]:
    if not 0 <= seconds <= grace_period:
        text = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_period})"
        yield invalid(field, seconds, text)


def port_errors(field: str, port: object) -> Iterator[FieldError]:
    """Errors of a port given by its number or by the name in its container."""
    if isinstance(port, str):
        yield from invalid_for(field, port, port_name_errors(port))
    elif not isinstance(port, int) or not 1 <= port <= _LARGEST_PORT:
        yield invalid(field, port or 0, f"must be between 1 and {_LARGEST_PORT}, inclusive")


def port_name_errors(name: str) -> Iterator[str]:
    if len(name) > _LONGEST_PORT_NAME:
        yield f"must be no more than {_LONGEST_PORT_NAME} characters"
    if not re.fullmatch(r"[-a-z0-9]+", name):
        yield "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    if not re.search(r"[a-z]", name):
        yield "must contain at least one letter (a-z)"
    if "--" in name:
        yield "must not contain consecutive hyphens"
    if name.startswith("-") or name.endswith("-"):
        yield "must not begin or end with a hyphen"
