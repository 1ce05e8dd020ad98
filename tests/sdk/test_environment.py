"""`run(plugin)` obeys the variables of `plugwright run`, and what a program says itself wins."""

import json
import logging
from pathlib import Path

import pytest
from tests.cli.processes import ended, python, running
from tests.observed_kubelet import ObservedKubelet

from plugwright.errors import ConfigError
from plugwright.sdk.environment import with_environment
from plugwright.sdk.settings import Registration, Settings
from plugwright.system import json_lines

TAPE = """
from plugwright import Device, Plugin, run

class Tape(Plugin):
    resource = "example.com/tape"

    def discover(self):
        return [Device("st0")]

run(Tape())
"""
ALL = {
    "PLUGWRIGHT_REGISTRATION": "watcher",
    "PLUGWRIGHT_RELEASE": "devices/tapes",
    "PLUGWRIGHT_STATE_DIR": "/state",
    "PLUGWRIGHT_NODE_DIR": "/node",
    "PLUGWRIGHT_CONTROL_SOCKET": "/control.sock",
    "PLUGWRIGHT_LISTEN": "127.0.0.1:9400",
}


def test_variables_set_what_is_left_at_its_default() -> None:
    expected = Settings(
        registration=Registration.WATCHER,
        release="devices/tapes",
        state_dir=Path("/state"),
        node_dir=Path("/node"),
        control_socket=Path("/control.sock"),
        listen="127.0.0.1:9400",
    )
    assert with_environment(Settings(), ALL) == expected


class MoreSettings(Settings, frozen=True, kw_only=True):
    """A setting that is added has its variable without more ado."""

    addresses: tuple[str, ...] = ()
    certificate: Path | None = None


def test_a_new_setting_has_its_variable() -> None:
    environment = {"PLUGWRIGHT_ADDRESSES": "10.0.0.1,gateway", "PLUGWRIGHT_CERTIFICATE": "/tls.crt"}
    changed = with_environment(MoreSettings(), environment)
    assert changed == MoreSettings(addresses=("10.0.0.1", "gateway"), certificate=Path("/tls.crt"))


def test_what_the_program_sets_wins() -> None:
    own = Settings(state_dir=Path("/own"), listen="127.0.0.1:1", control_socket=Path("/own.sock"))
    changed = with_environment(own, ALL)
    assert (changed.state_dir, changed.listen, changed.control_socket) == (
        own.state_dir,
        own.listen,
        own.control_socket,
    )


def test_variables_that_are_empty_or_absent_change_nothing() -> None:
    assert with_environment(Settings(), dict.fromkeys(ALL, "")) == with_environment(Settings(), {}) == Settings()


def test_a_way_of_registration_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="PLUGWRIGHT_REGISTRATION must be one of direct, watcher, got 'mail'"):
        with_environment(Settings(), {"PLUGWRIGHT_REGISTRATION": "mail"})


async def test_a_program_of_ones_own_logs_and_answers_as_it_is_told(kubelet: ObservedKubelet, tmp_path: Path) -> None:
    control = kubelet.paths.root / "c.sock"
    where = {
        "PLUGWRIGHT_KUBELET_DIR": str(kubelet.paths.root),
        "PLUGWRIGHT_CONTROL_SOCKET": str(control),
        "PLUGWRIGHT_LOG_FORMAT": "json",
        "PLUGWRIGHT_LOG_LEVEL": "debug",
    }
    async with running(python("-c", TAPE), where) as plugin:
        line = json.loads(await plugin.err.until('"registered"'))
        assert (line["resource"], line["directory"]) == ("example.com/tape", str(kubelet.paths.device_plugins))
        await plugin.err.until('"debug"')
        report = json_lines.ask(control, {"do": "status"})
        assert [device["id"] for device in report["resources"][0]["devices"]] == ["st0"]


@pytest.mark.parametrize("name", ["LOG_LEVEL", "LOG_FORMAT"])
async def test_a_wrong_variable_is_one_line(name: str, root: Path) -> None:
    done = await ended(python("-c", TAPE), {"PLUGWRIGHT_KUBELET_DIR": str(root), f"PLUGWRIGHT_{name}": "loud"})
    assert done.code == 1
    assert done.err.startswith(f"plugwright: PLUGWRIGHT_{name} must be one of ")
    assert done.err.strip().endswith("got 'loud'")


async def test_a_program_with_logging_of_its_own_keeps_it(kubelet: ObservedKubelet) -> None:
    own = f"import logging\nlogging.basicConfig(format='OWN %(message)s', level={logging.WARNING})\n"
    where = {"PLUGWRIGHT_KUBELET_DIR": str(kubelet.paths.root), "PLUGWRIGHT_LOG_LEVEL": "info"}
    async with running(python("-c", own + TAPE), where) as plugin:
        assert await plugin.err.until("registered") == "OWN registered"
