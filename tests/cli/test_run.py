"""`plugwright run`: the values in force and their sources, and a daemon that serves them."""

import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cli.processes import Node, ended, python, running
from tests.observed_kubelet import ObservedKubelet

from plugwright.cli.main import cli

FILE = "resources:\n  - name: mock/gpu\n    mock:\n      count: 2\n      model: A100\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plugwright.yaml"
    path.write_text(FILE)
    return path


def run(*arguments: object, **environment: str | None) -> Result:
    clean = {name: None for name in os.environ if name.startswith("PLUGWRIGHT_")}
    return CliRunner(env={**clean, **environment}).invoke(cli, ["run", *map(str, arguments)])


def effective(*arguments: object, **environment: str | None) -> dict[str, tuple[object, str]]:
    """Every value in force and where it comes from."""
    result = run("--print-config", "json", *arguments, **environment)
    assert result.exit_code == 0, result.output
    return {row["key"]: (row["value"], row["source"]) for row in json.loads(result.output)}


def test_every_value_is_shown_with_its_source(path: Path) -> None:
    shown = effective("-c", path, "--kubelet-dir", "/flag", PLUGWRIGHT_STATE_DIR="/variable")
    assert shown["kubelet_dir"] == ("/flag", "--kubelet-dir")
    assert shown["state_dir"] == ("/variable", "PLUGWRIGHT_STATE_DIR")
    assert shown["control_socket"] == ("/run/plugwright/control.sock", "default")
    assert shown["resources[0].name"] == ("mock/gpu", "plugwright.yaml:2")
    assert shown["resources[0].mock.count"] == (2, "plugwright.yaml:4")
    assert shown["resources[0].mock.model"] == ("A100", "plugwright.yaml:5")
    assert shown["resources[0].mock.memory"] == ("16Gi", "default")


def test_text_says_the_same_as_json(path: Path) -> None:
    result = run("-c", path, "--print-config", PLUGWRIGHT_STATE_DIR="/variable")
    assert result.exit_code == 0
    shown = {}
    for line in result.output.splitlines():
        setting, _, source = line.partition("  # ")
        key, _, value = setting.partition(": ")
        shown[key] = (json.loads(value), source)
    assert shown == effective("-c", path, PLUGWRIGHT_STATE_DIR="/variable")


@pytest.mark.parametrize(
    ("flag", "value", "variable", "other"),
    [
        ("--kubelet-dir", "/flag", "PLUGWRIGHT_KUBELET_DIR", "/variable"),
        ("--device-plugins-dir", "/flag", "PLUGWRIGHT_DEVICE_PLUGINS_DIR", "/variable"),
        ("--registration", "watcher", "PLUGWRIGHT_REGISTRATION", "direct"),
        ("--release", "flag/flag", "PLUGWRIGHT_RELEASE", "variable/variable"),
        ("--state-dir", "/flag", "PLUGWRIGHT_STATE_DIR", "/variable"),
        ("--node-dir", "/flag", "PLUGWRIGHT_NODE_DIR", "/variable"),
        ("--control-socket", "/flag", "PLUGWRIGHT_CONTROL_SOCKET", "/variable"),
        ("--listen", "127.0.0.1:1", "PLUGWRIGHT_LISTEN", "127.0.0.1:2"),
        ("--log-format", "json", "PLUGWRIGHT_LOG_FORMAT", "human"),
        ("--log-level", "debug", "PLUGWRIGHT_LOG_LEVEL", "error"),
    ],
)
def test_a_flag_wins_over_a_variable_over_the_default(
    path: Path, flag: str, value: str, variable: str, other: str
) -> None:
    key = flag.removeprefix("--").replace("-", "_")
    assert effective("-c", path, flag, value, **{variable: other})[key] == (value, flag)
    assert effective("-c", path, **{variable: other})[key] == (other, variable)
    assert effective("-c", path)[key][1] == "default"


def test_the_file_is_named_by_a_flag_or_a_variable(path: Path, tmp_path: Path) -> None:
    assert run("--check", PLUGWRIGHT_CONFIG=str(path)).output == f"{path}: 1 resource, valid\n"
    assert run("--check", "-c", path, PLUGWRIGHT_CONFIG=str(tmp_path / "none")).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-flag"],
        ["--registration", "both"],
        ["--log-level", "loud"],
        ["--print-config", "xml"],
        ["--kubelet-dir"],
        ["one-argument-too-many"],
    ],
)
def test_a_wrong_call_is_exit_code_2(path: Path, arguments: list[str]) -> None:
    result = run("-c", path, *arguments)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_a_wrong_variable_is_a_wrong_call(path: Path) -> None:
    result = run("-c", path, PLUGWRIGHT_LOG_LEVEL="loud")
    assert result.exit_code == 2
    assert "PLUGWRIGHT_LOG_LEVEL" in result.stderr


async def test_a_process_called_wrongly_ends_with_2_and_without_a_traceback() -> None:
    done = await ended(python("-m", "plugwright", "run", "--no-such-flag"))
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == "Error: No such option '--no-such-flag'."


async def failed(root: Path, *flags: object) -> str:
    """What a daemon that cannot start says: one line."""
    node = Node(root)
    node.configure(gpu={"count": 2})
    done = await ended(node.command(*flags))
    assert (done.code, done.out) == (1, "")
    assert "Traceback" not in done.err
    assert done.err.splitlines()[-1].startswith("plugwright: ")
    return done.err.splitlines()[-1].removeprefix("plugwright: ")


async def test_a_kubelet_directory_is_absolute(root: Path) -> None:
    assert await failed(root, "--kubelet-dir", "var") == "kubelet directory must be an absolute path, got 'var'"


async def test_a_kubelet_directory_deleted_under_its_mount_ends_the_daemon_with_code_1(root: Path) -> None:
    """An open descriptor keeps a deleted directory as a mount does."""
    kept = root / "device-plugins"
    kept.mkdir()
    descriptor = os.open(kept, os.O_RDONLY | os.O_DIRECTORY)
    node = Node(root)
    node.configure(gpu={"count": 2})
    try:
        mounted = f"/proc/{os.getpid()}/fd/{descriptor}"
        async with running(node.command("--device-plugins-dir", mounted)) as daemon:
            await daemon.err.until("waiting for the kubelet")
            kept.rmdir()
            kept.mkdir()
            await daemon.err.until(f"plugwright: {mounted} was deleted on the node")
            assert await daemon.ends() == 1
    finally:
        os.close(descriptor)


async def test_an_address_that_is_none_is_refused(root: Path) -> None:
    said = await failed(root, "--listen", "9400")
    assert said == "address to listen on must be HOST:PORT such as 127.0.0.1:9400, got '9400'"


async def test_an_address_in_use_is_refused(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:{}".format(*taken.getsockname()[1:])
        assert await failed(root, "--listen", address) == f"cannot listen on {address}: Address already in use"


async def test_a_daemon_serves_its_file_until_sigterm(root: Path, kubelet: ObservedKubelet) -> None:
    node = Node(root)
    node.configure(gpu={"count": 2}, nic={"count": 3})
    async with node.daemon() as daemon:
        assert len((await kubelet.endpoint("mock/gpu")).devices) == 2
        assert len((await kubelet.endpoint("mock/nic")).devices) == 3
        assert not listening_ports(daemon.pid)
        daemon.signal(signal.SIGTERM)
        assert await daemon.ends() == 0
    left = {path.name for path in kubelet.paths.device_plugins.iterdir()}
    assert left == {"kubelet.sock", "kubelet_internal_checkpoint"}
    assert not node.control.exists()


def listening_ports(pid: int) -> list[str]:
    """The TCP sockets that a process listens on."""
    held = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            held.add(str(descriptor.readlink()))
    rows = [row.split() for family in ("tcp", "tcp6") for row in Path(f"/proc/net/{family}").read_text().splitlines()]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]


async def test_a_daemon_with_watcher_registration_waits_for_the_kubelet(root: Path, kubelet: ObservedKubelet) -> None:
    node = Node(root)
    node.configure(gpu={"count": 1})
    async with node.daemon("--registration", "watcher"):
        await kubelet.endpoint("mock/gpu")
        assert [path for path in kubelet.paths.plugins_registry.iterdir() if path.is_socket()]


async def test_a_daemon_without_a_control_socket_still_serves(root: Path, kubelet: ObservedKubelet) -> None:
    node = Node(root)
    node.configure(gpu={"count": 1})
    root.joinpath("run").touch()
    async with node.daemon() as daemon:
        await daemon.err.until("no control socket")
        await kubelet.endpoint("mock/gpu")
