"""`plugwright kubelet` as a plugin author meets it: over real sockets, beside a real plugin process."""

import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.processes import Ended, Node, Running, ended, python, running

from plugwright.cli import kubelet_view as view
from plugwright.kubelet.events import Call, Finding

GPU = "mock/gpu"
FAILING = """
from plugwright import Device, Plugin, run

class Failing(Plugin):
    resource = "example.com/failing"

    async def discover(self):
        yield [Device("one")]

    async def pre_start(self, devices):
        raise RuntimeError("not today")

run(Failing())
"""
HANGING = """
import asyncio
from plugwright import Device, Limits, Plugin, Settings, run

class Hanging(Plugin):
    resource = "example.com/hanging"

    async def discover(self):
        yield [Device("one")]

    async def allocate(self, devices):
        print("asked", flush=True)
        await asyncio.Event().wait()

run(Hanging(), settings=Settings(limits=Limits(allocate=1000)))
"""


def pod(name: str, wants: Mapping[str, object], *command: str) -> str:
    """JSON, which is YAML too."""
    container = {"name": "main", "command": list(command), "resources": {"limits": dict(wants)}}
    return json.dumps({"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}})


class Workspace:
    """A directory for the kubelet, one for pods, and a node's daemon with mock devices."""

    def __init__(self, root: Path) -> None:
        self.root = root / "k"
        self.pods = root / "pods"
        self.pods.mkdir()
        self.node = Node(root)

    def write(self, name: str, text: str) -> Path:
        """Written atomically: a reader never sees half of it."""
        new = self.pods / f".{name}"
        new.write_text(text)
        return new.rename(self.pods / f"{name}.yaml")

    def command(self, *flags: object) -> list[str]:
        return python("-m", "plugwright", "kubelet", "--root", self.root, *flags)

    @asynccontextmanager
    async def kubelet(self, *flags: object) -> AsyncIterator[Running]:
        async with running(self.command(*flags)) as kubelet:
            yield kubelet
        assert "Traceback" not in "\n".join(kubelet.err.all)

    @asynccontextmanager
    async def plugin(self, count: int = 4) -> AsyncIterator[Running]:
        self.node.configure(gpu={"count": count})
        async with self.node.daemon("--kubelet-dir", self.root) as daemon:
            yield daemon

    async def once(self, *flags: object) -> tuple[Ended, list[dict[str, Any]]]:
        done = await ended(self.command("--once", "--output", "json", *flags))
        assert "Traceback" not in done.err
        return done, [json.loads(line) for line in done.out.splitlines()]


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root)


def states(records: list[dict[str, Any]], *kinds: str) -> list[tuple[str, str]]:
    return [(record["state"], record["about"]) for record in records if record.get("state") in kinds]


async def test_yaml_is_a_stream_of_the_same_documents(workspace: Workspace) -> None:
    path = workspace.write("plain", pod("plain", {}))
    done, records = await workspace.once(path)
    streamed = await ended(workspace.command("--once", "--output", "yaml", path))
    assert streamed.code == done.code == 0
    documents = list(yaml.safe_load_all(streamed.out))
    assert [document.keys() for document in documents] == [record.keys() for record in records]


async def test_start_shows_the_sockets_and_how_to_point_a_plugin_at_them(workspace: Workspace) -> None:
    async with workspace.kubelet("--numa", 2, "--policy", "restricted", "--version", "1.34.7") as kubelet:
        await kubelet.out.until("started")
        assert (workspace.root / "device-plugins" / "kubelet.sock").is_socket()
        kubelet.signal(signal.SIGINT)
        assert await kubelet.ends() == 0
    text = "\n".join(kubelet.out.all)
    assert f"kubelet 1.34.7 in {workspace.root} (2 NUMA nodes, policy restricted, scope container)" in text
    assert f"plugwright run --kubelet-dir {workspace.root}" in text
    assert f"--plugin-directory {workspace.root}/device-plugins" in text
    assert f"kill -USR1 {kubelet.pid}" in text
    assert "\x1b" not in text  # colour is for terminals
    assert not (workspace.root / "device-plugins" / "kubelet.sock").exists()


async def test_every_call_state_and_finding_is_a_line(workspace: Workspace) -> None:
    async with workspace.kubelet("--pods", workspace.pods) as kubelet, workspace.plugin():
        await kubelet.out.until(f"list                     {GPU}: 4 devices, 4 healthy")
        workspace.write("a", pod("web", {GPU: 1, "example.com/tpae": 1}))
        await kubelet.out.until("waiting                  default/web: at most 60 s, because no plugin has listed")
        workspace.write("b", pod("api", {GPU: 2}))
        await kubelet.out.until("started                  default/api/main")
        await kubelet.out.until("env        MOCK_VISIBLE_DEVICES=")
    text = "\n".join(kubelet.out.all)
    assert f"Register                 {GPU} [plugwright-" in text
    assert f"ListAndWatch             {GPU} open" in text
    assert f"Allocate                 {GPU} [mock-0-" in text


async def test_pods_wait_for_their_resources_and_show_what_they_got(workspace: Workspace) -> None:
    path = workspace.write("a", pod("web", {GPU: 2}))
    async with workspace.plugin():
        done, records = await workspace.once(path)
    assert done.code == 0, done.out
    assert states(records, "waiting", "admitted", "refused") == [
        ("waiting", "default/web"),
        ("admitted", "default/web"),
    ]
    [got] = [record["granted"] for record in records if "granted" in record]
    allocated = [record for record in records if record.get("method") == "Allocate"]
    assert got["env"]["MOCK_VISIBLE_DEVICES"] == ",".join(allocated[0]["asked"])
    assert (allocated[0]["outcome"], allocated[0]["seconds"] > 0) == ("OK", True)


async def test_pods_of_an_earlier_run_are_freed_and_not_shown_otherwise(workspace: Workspace) -> None:
    path = workspace.write("a", pod("web", {GPU: 1}))
    async with workspace.plugin(count=1):
        await workspace.once(path)
        done, records = await workspace.once(path)
    assert done.code == 0, done.out
    assert (
        len([record for record in records if record.get("method") == "Allocate"]) == 1
    )  # a new pod, so Allocate is called again
    assert [about.partition(", ")[2] for _, about in states(records, "freed", "health")] == ["a pod of an earlier run"]


async def test_a_refused_pod_is_exit_code_1_with_the_kubelets_reason(workspace: Workspace) -> None:
    paths = [workspace.write("a", pod("first", {GPU: 2})), workspace.write("b", pod("second", {GPU: 1}))]
    async with workspace.plugin(count=2):
        done, records = await workspace.once(*paths)
    assert done.code == 1
    assert states(records, "admitted", "refused") == [("admitted", "default/first"), ("refused", "default/second")]
    assert "requested number of devices unavailable" in done.out


async def test_pod_with_an_unlisted_resource_is_submitted_after_the_timeout(workspace: Workspace) -> None:
    done, records = await workspace.once("--timeout", "0.05", workspace.write("a", pod("web", {GPU: 1})))
    assert done.code == 1
    assert [kind for kind, _ in states(records, "waiting", "not waiting", "admitted")] == [
        "waiting",
        "not waiting",
        "admitted",
    ]


async def test_a_finding_is_an_error_only_when_it_is_strict(workspace: Workspace) -> None:
    """3.63: a real kubelet starts such a pod without any device."""
    path = workspace.write("a", pod("web", {GPU: 1}))
    tolerant, records = await workspace.once("--timeout", "0", path)
    strict, _ = await workspace.once("--timeout", "0", "--strict", path)
    assert [record["fact"] for record in records if record["event"] == "finding"] == ["3.63"]
    assert (tolerant.code, strict.code) == (0, 1)


async def test_a_container_that_cannot_start_is_exit_code_1(workspace: Workspace) -> None:
    path = workspace.write("a", pod("web", {"example.com/failing": 1}))
    async with running(python("-c", FAILING), {"PLUGWRIGHT_KUBELET_DIR": str(workspace.root)}):
        done, records = await workspace.once(path)
    assert done.code == 1
    assert ("waiting", "default/web/main") in states(records, "waiting")
    assert "CreateContainerConfigError: device plugin PreStartContainer rpc failed" in done.out


@pytest.mark.parametrize("restarts", [0, 2])
async def test_plugin_that_hangs_does_not_prevent_the_end(restarts: int, workspace: Workspace) -> None:
    path = workspace.write("a", pod("web", {"example.com/hanging": 1}))
    where = {"PLUGWRIGHT_KUBELET_DIR": str(workspace.root)}
    async with workspace.kubelet(path) as kubelet, running(python("-c", HANGING), where) as plugin:
        await plugin.out.until("asked")
        for _ in range(restarts):
            kubelet.signal(signal.SIGUSR1)
        kubelet.signal(signal.SIGTERM)
        assert await kubelet.ends() == 0


RESOURCES = f"    resources:\n      limits:\n        {GPU}: two\n"


async def test_pods_follow_the_files_of_a_folder(workspace: Workspace) -> None:
    async with workspace.kubelet("--pods", workspace.pods) as kubelet, workspace.plugin():
        path = workspace.write("a", pod("web", {GPU: 1}))
        await kubelet.out.until("started                  default/web/main")
        workspace.write("a", pod("web", {GPU: 3}))
        await kubelet.out.until("deleted                  default/web")
        await kubelet.out.until("started                  default/web/main", count=2)
        workspace.write("b", "{kind")
        await kubelet.out.until("invalid                  b.yaml: line ")
        workspace.write("c", f"metadata: {{name: bad}}\nspec:\n  containers:\n  - name: main\n{RESOURCES}")
        await kubelet.out.until(f"invalid                  c.yaml: line 7: main.resources.limits[{GPU}]: ")
        path.unlink()
        await kubelet.out.until("deleted                  default/web", count=2)
    assert len([line for line in kubelet.out.all if "Allocate  " in line]) == 2


async def test_usr1_restarts_the_kubelet_and_plugins_come_back(workspace: Workspace) -> None:
    path = workspace.write("a", pod("web", {GPU: 1}))
    async with workspace.kubelet(path) as kubelet, workspace.plugin():
        await kubelet.out.until("started                  default/web/main")
        kubelet.signal(signal.SIGUSR1)
        await kubelet.out.until(f"registered               {GPU}", count=2)
    assert len([line for line in kubelet.out.all if "admitted                 default/web" in line]) == 2
    assert len([line for line in kubelet.out.all if "Allocate  " in line]) == 1


async def test_run_starts_the_command_with_the_options_of_its_devices(workspace: Workspace) -> None:
    path = workspace.write("a", pod("web", {GPU: 1}, "sh", "-c", "echo it got $MOCK_VISIBLE_DEVICES"))
    async with workspace.plugin():
        done, records = await workspace.once("--run", path)
    assert done.code == 0, done.out
    [line] = [record for record in records if record["event"] == "output"]
    assert line["about"] == "default/web/main"
    assert line["text"].startswith("it got mock-")
    assert ("succeeded", "default/web") in states(records, "succeeded")


async def test_a_process_that_fails_is_exit_code_1(workspace: Workspace) -> None:
    done, records = await workspace.once("--run", workspace.write("a", pod("web", {}, "sh", "-c", "exit 3")))
    assert done.code == 1
    assert [record["text"] for record in records if record.get("state") == "ended"] == ["exit code 3"]


@pytest.mark.parametrize("how", ["removal", "signal"])
async def test_processes_end_with_their_pod_and_with_the_program(how: str, workspace: Workspace) -> None:
    path = workspace.write("a", pod("web", {}, "sh", "-c", "echo pid $$$$; exec sleep 1000"))
    async with workspace.kubelet("--run", "--pods", workspace.pods) as kubelet:
        pid = int((await kubelet.out.until("| pid ")).rpartition(" ")[2])
        os.kill(pid, 0)  # it is there
        if how == "removal":
            path.unlink()
            await kubelet.out.until("deleted  ")
        else:
            kubelet.signal(signal.SIGTERM)
            assert await kubelet.ends() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_no_process_is_started_without_run(workspace: Workspace) -> None:
    done, records = await workspace.once(workspace.write("a", pod("web", {}, "touch", str(workspace.pods / "started"))))
    assert (done.code, states(records, "running")) == (0, [])
    assert not (workspace.pods / "started").exists()


async def test_a_directory_with_other_files_is_refused(workspace: Workspace) -> None:
    workspace.root.mkdir()
    (workspace.root / "mine").touch()
    done = await ended(workspace.command())
    assert (done.code, done.out) == (1, "")
    assert done.err == f"plugwright: {workspace.root} contains files that no emulated kubelet wrote, such as mine\n"


@pytest.mark.parametrize(
    "flags",
    [("--version", "1.99"), ("--numa", "9", "--policy", "restricted"), ("--numa", "0"), ("--once",), ("--policy", "x")],
)
async def test_a_wrong_call_is_exit_code_2(flags: tuple[str, ...], workspace: Workspace) -> None:
    done = await ended(workspace.command(*flags))
    assert (done.code, done.out) == (2, "")
    assert "Error: " in done.err


async def test_closed_output_ends_the_program_without_a_traceback(workspace: Workspace) -> None:
    """It notices with its next line."""
    command = " ".join(workspace.command("--once", "--timeout", "0", workspace.write("a", pod("web", {GPU: 1}))))
    done = await ended(["sh", "-c", f"{command} | true"])
    assert "Traceback" not in done.err


def test_many_devices_are_counted_instead_of_named() -> None:
    call = Call("Allocate", GPU, tuple(f"gpu-{number}" for number in range(100)), 0.0012)
    [line] = view.lines(call, None)
    assert "mock/gpu [gpu-0, gpu-1, gpu-2, gpu-3 and 96 more]" in line


def test_a_finding_says_what_a_real_kubelet_does() -> None:
    finding = Finding("2.22", GPU, "the stream of an older plugin ended", "tears down the newer connection")
    first, second = view.lines(finding, None)
    assert "finding 2.22" in first
    assert second.strip() == "a real kubelet tears down the newer connection (docs/kubelet-behaviour.md#2.22)"
