"""`devices`, `who` and `free` on a cluster of `plugwright up` with real daemons, and through exec."""

import asyncio
import json
from pathlib import Path

import pytest
from lightkube.resources.core_v1 import Pod
from tests.cli.processes import Ended, ended, python
from tests.cluster.up.clusters import RuntimeDirectory, pod
from tests.kube.exec_server import daemon_pod, exec_server

HOSTILE = "fan\x1b[31m\x07 off\u202e"


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeDirectory:
    runtime = RuntimeDirectory(tmp_path)
    runtime.environment |= {"HOME": str(tmp_path), "KUBECONFIG": ""}
    return runtime


async def test_holders_free_devices_and_reasons_of_a_cluster(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    config = tmp_path / "plugwright.yaml"
    config.write_text("resources: [{name: mock/gpu, mock: {count: 3, model: A100}}]")
    async with runtime.up("--nodes", 2, "-c", config) as up:
        with up.client as api:
            api.create(pod("two", gpu="2"))
            api.wait(Pod, "two", for_conditions=["Ready"], namespace="default")
        held = json.loads((await runtime.ask("who", "two", "-o", "json")).out)["devices"]
        assert [device["holders"][0]["container"] for device in held] == ["main", "main"]
        other = "node-2" if held[0]["node"] == "node-1" else "node-1"
        assert (await runtime.ask("mock", "fail", "2", "--node", other, "--reason", HOSTILE)).code == 0
        assert (await runtime.ask("cordon", "mock/gpu", "1", "--node", other, "--reason", HOSTILE)).code == 0
        rows = (await runtime.ask("free", "--by", "node")).out.splitlines()
        assert [row.split()[1:] for row in rows] == [
            ["NODE", "TOTAL", "FREE", "HELD", "UNHEALTHY", "UNKNOWN"],
            ["node-1", "3", *(["1", "2", "0"] if other == "node-2" else ["1", "0", "2"]), "0"],
            ["node-2", "3", *(["1", "0", "2"] if other == "node-2" else ["1", "2", "0"]), "0"],
        ]
        shown = (await runtime.ask("devices", other, "-o", "wide")).out
        assert "A100" in shown
        assert "fan\\x1b[31m\\x07 off\\u202e" in shown
        assert not set("\x1b\x07\u202e") & set(shown)
        document = json.loads((await runtime.ask("devices", other, "--unhealthy", "-o", "json")).out)
        assert {device["state"] for device in document["devices"]} == {"unhealthy", "cordoned"}
        assert document["sources"][other].startswith("control socket ")
        assert document["unseen"] == []
        nothing = await runtime.ask("who", "nobody")
        assert nothing == Ended(1, "", "plugwright: no resource, device, holding pod or claim is named 'nobody'\n")
        assert (await runtime.ask("who", "2")).err.endswith("with --node NODE it is the index of a device\n")
        unknown = await runtime.ask("devices", "node-9")
        assert unknown == Ended(1, "", "plugwright: no Node is named 'node-9' (there are: node-1, node-2)\n")


async def test_through_exec_the_report_adds_what_the_api_server_lacks(
    runtime: RuntimeDirectory, tmp_path: Path
) -> None:
    async with runtime.up() as up:
        with exec_server([daemon_pod("p")], {"p": Path(up.socket())}) as server:
            capacity = {"capacity": {"mock/gpu": "10", "a.com/x": "2"}, "allocatable": {"mock/gpu": "10"}}
            server.lists["/api/v1/nodes"] = [{"metadata": {"name": "worker-1"}, "status": capacity}]
            flags = ["--kubeconfig", server.kubeconfig(tmp_path / "config")]
            listed = await ended(python("-m", "plugwright", "devices", "worker-1", *flags), runtime.environment)
            *devices, unnamed, unseen = listed.out.splitlines()
            assert len(devices) == 11
            assert unnamed.startswith("worker-1  a.com/x: 2 devices, 0 allocatable, 0 requested by pods")
            assert unseen.startswith("not seen: worker-1: no NodeReport: ids, health and holders are those of pod")
            known = await ended(python("-m", "plugwright", "devices", "-o", "json", *flags), runtime.environment)
            assert json.loads(known.out)["sources"] == {"worker-1": "pod devices/p"}
            wide = await ended(python("-m", "plugwright", "devices", "-o", "wide", *flags), runtime.environment)
            assert "NodeReport of worker-1: by exec into pod devices/p" in wide.out.splitlines()


async def test_the_report_is_read_through_the_proxy_of_a_pod_with_a_port_and_by_exec_if_that_fails(
    runtime: RuntimeDirectory, tmp_path: Path
) -> None:
    path = "/api/v1/namespaces/devices/pods/https:p:9400/proxy/"
    pods = [daemon_pod("p")]
    pods[0]["metadata"]["annotations"] = {"plugwright.dev/node-report": "https:9400"}
    async with runtime.up() as up:
        with exec_server(pods, {"p": Path(up.socket())}) as server:
            flags = ["--kubeconfig", server.kubeconfig(tmp_path / "config")]

            async def answer(*arguments: str) -> list[str]:
                done = await ended(python("-m", "plugwright", *arguments, *flags), runtime.environment)
                return done.out.splitlines()

            server.objects[path + "node-report"] = json.loads((await runtime.ask("status", "-o", "json")).out)
            event = {"time": "2999-01-01T00:00:00.5Z", "kind": "health", "health": "Unhealthy", "reason": "hot"}
            event |= {
                "resource": "mock/gpu",
                "device": server.objects[path + "node-report"]["resources"][0]["devices"][0]["id"],
            }
            long_ago = {**event, "time": "2001-01-01T00:00:00Z"}
            server.objects[path + "history"] = {"events": [long_ago, event]}
            assert "NodeReport of worker-1: from the proxy of pod devices/p" in await answer("devices", "-o", "wide")
            assert (await answer("who", "0", "--node", "worker-1"))[2:5] == [
                "", "last 24 hours:", "  2999-01-01T00:00:00Z  Unhealthy: hot"
            ]  # fmt: skip
            assert not [request for request in server.requests if "/exec" in request]
            del server.objects[path + "node-report"]
            read = "by exec into pod devices/p; its port https:9400 cannot be read: no such path (NotFound)"
            assert f"NodeReport of worker-1: {read}" == (await answer("devices", "-o", "wide"))[-1]


async def test_a_report_of_another_shape_is_an_error_and_not_believed(tmp_path: Path) -> None:
    with exec_server([daemon_pod("p")]) as server:
        answer = json.dumps({"ok": {"kind": "NodeReport", "resources": [{"devices": 5}]}}).encode()
        server.frames = [bytes([0x82, len(answer) + 2, 1]) + answer + b"\n", b"\x82\x16\x03" + b'{"status":"Success"} ']
        flags = ["--kubeconfig", str(server.kubeconfig(tmp_path / "config"))]
        done = await ended(python("-m", "plugwright", "devices", *flags))
        assert "no devices" in done.out
        assert "worker-1: its NodeReport cannot be read: the answer is not a NodeReport" in done.out


async def test_the_history_of_a_device_and_of_a_pod(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    config = tmp_path / "plugwright.yaml"
    config.write_text("resources: [{name: mock/gpu, mock: {count: 2}}]")
    async with runtime.up("--nodes", 2, "-c", config) as up:
        with up.client as api:
            api.create(pod("two", gpu="2"))
            api.wait(Pod, "two", for_conditions=["Ready"], namespace="default")
        failed = await runtime.ask("mock", "fail", "1", "--node", "node-2", "--reason", HOSTILE, "--code", "xid-79")
        assert failed.code == 0
        async with asyncio.timeout(60):  # the daemon writes seconds after a change
            while len(events := json.loads((await runtime.ask("history", "-o", "json")).out)) < 3:
                pass
        assert sorted(event["kind"] for event in events) == ["allocated", "allocated", "health"]
        lines = (await runtime.ask("history", "default/two", "--since", "1h")).out.splitlines()
        assert [line.split()[2:] for line in lines[1:]] == [
            ["mock/gpu", event["device"], "allocated", "to", "default/two/main"]
            for event in events
            if event["kind"] == "allocated"
        ]
        shown = (await runtime.ask("who", "1", "--node", "node-2")).out.splitlines()
        assert shown[2:4] == ["", "last 24 hours:"]
        assert shown[4].endswith("Z  Unhealthy: fan\\x1b[31m\\x07 off\\u202e (xid-79)")
        assert "no event in the last 24 hours" in (await runtime.ask("who", "0", "--node", "node-2")).out
        [head, line] = (await runtime.ask("history", "--node", "node-2", "mock/gpu")).out.splitlines()[:1] + [
            line for line in (await runtime.ask("history", "mock-1")).out.splitlines() if "Unhealthy" in line
        ]
        assert head.split() == ["TIME", "NODE", "RESOURCE", "DEVICE", "EVENT"]
        assert "Unhealthy: fan\\x1b[31m\\x07 off\\u202e (xid-79)" in line
        by_index = (await runtime.ask("history", "1", "--node", "node-2")).out.splitlines()
        assert [line.split()[4] for line in by_index[1:]] == ["Unhealthy:"]
        assert (await runtime.ask("history", "default/other")).out == "no event of 'default/other' in that time\n"
