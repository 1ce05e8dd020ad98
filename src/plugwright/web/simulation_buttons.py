"""Buttons for simulated devices: the commands of their plugins, and the requests that a button makes."""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from plugwright.errors import ConfigError
from plugwright.fleet.claim_users import text_of
from plugwright.fleet.fleet_devices import FleetDevice
from plugwright.web.live_fleet import LiveFleet
from plugwright.web.markup import Html, attribute, text

__all__ = ["TOKEN", "add_forms", "device_forms", "send_command"]

TOKEN = f"@{secrets.token_hex(8)}@"  # replaced by the server with the token for changes, which views do not know
_ADD = "add"
# By command of a plugin: the label of the button, and the arguments besides the id.
_BUTTONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "fail": ("Fail", {"reason": "made to fail on the page"}),
    "xid": ("Fail with Xid 79", {"xid": "79"}),
    "recover": ("Recover", {}),
    "remove": ("Remove", {}),
}


class _Command(msgspec.Struct, frozen=True):
    node: str
    resource: str
    name: str
    id: str


def device_forms(device: FleetDevice, report: Mapping[str, Any]) -> Html:
    """A button for each command to a simulated device; empty for a real one."""
    offered = _offered(report, device.resource)
    forms = "".join(
        _form(_Command(device.node, device.resource, name, device.id), f"<button>{label}</button>")
        for name, (label, _) in _BUTTONS.items()
        if name in offered
    )
    return _section(forms)


def add_forms(node: str, report: Mapping[str, Any]) -> Html:
    forms = "".join(_add_forms(node, report))
    return _section(forms)


def _section(forms: Html) -> Html:
    """Not printed."""
    return (
        f'<section class="simulation"><h2>Simulation</h2><div class="buttons">{forms}</div></section>' if forms else ""
    )


def _add_forms(node: str, report: Mapping[str, Any]) -> Iterator[Html]:
    for number, resource in enumerate(report.get("resources") or ()):
        name = text_of(resource.get("name"))
        if _ADD in _offered(report, name):
            field = f'<label>Id <input name="id" id="add-{number}" placeholder="a new one"></label>'
            yield _form(_Command(node, name, _ADD, ""), f"{field}<button>Add {text(name)}</button>")


def _form(command: _Command, content: Html) -> Html:
    fields = {"token": TOKEN, "node": command.node, "resource": command.resource, "name": command.name}
    if command.id:
        fields["id"] = command.id
    hidden = "".join(f'<input type="hidden" name="{key}" value="{attribute(value)}">' for key, value in fields.items())
    return f'<form class="command" method="post" action="/command">{hidden}{content}</form>'


def _offered(report: Mapping[str, Any], resource: str) -> set[str]:
    for entry in report.get("resources") or ():
        if entry.get("name") == resource:
            return {text_of(name) for name in entry.get("simulates") or ()}
    return set()


async def send_command(fleet: LiveFleet, form: Mapping[str, str]) -> str:
    """Makes a plugin change a simulated device; returns its answer. Other requests are rejected."""
    command = _Command(*(form.get(key, "") for key in ("node", "resource", "name", "id")))
    if command.name not in _offered(fleet.report(command.node), command.resource):
        raise ConfigError(f"{command.resource} of {command.node} has no simulated devices that take {command.name!r}")
    if command.name != _ADD and command.name not in _BUTTONS:
        raise ConfigError(f"the page has no button for {command.name!r}")
    daemon = fleet.reports.daemon(command.node)
    if daemon is None:
        raise ConfigError(f"no daemon of {command.node} is known")
    _, more = _BUTTONS.get(command.name, ("", {}))
    arguments = {"id": command.id, **more}
    request: dict[str, object] = {
        "do": "plugin",
        "resource": command.resource,
        "name": command.name,
        "arguments": arguments,
    }
    answer = await fleet.reports.ask(daemon, request)
    fleet.reports.refresh(command.node)
    return text_of(answer)
