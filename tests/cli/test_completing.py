"""Names of a cluster are completed for the shells and for kubectl, and nothing is if the cluster does not answer."""

import asyncio
import signal
import socket
import sys
from pathlib import Path

import pytest
from tests.cli.processes import Ended, ended
from tests.cluster.up.clusters import RuntimeDirectory, pod

KUBECONFIG = """\
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: c, context: {{cluster: c}}}}]
current-context: c
"""


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeDirectory:
    runtime = RuntimeDirectory(tmp_path)
    runtime.environment |= {"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}
    return runtime


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


async def completed(line: str, environment: dict[str, str], shell: str = "bash") -> list[str]:
    words = {
        "_PLUGWRIGHT_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = await ended([program("plugwright")], environment | words)
    assert (done.code, done.err) == (0, ""), done
    return done.out.splitlines()


async def for_kubectl(environment: dict[str, str], *words: str) -> Ended:
    return await ended([program("kubectl_complete-plugwright"), *words], environment)


async def test_pods_nodes_namespaces_resources_and_devices(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    config = tmp_path / "plugwright.yaml"
    config.write_text("resources: [{name: mock/gpu, mock: {count: 2}}]")
    async with runtime.up("-c", config, "--kubeconfig", tmp_path / "kubeconfig") as up:
        with up.client as api:
            api.create(pod("train", gpu="4"))
        pods, nodes, spaces, resources, ids = await asyncio.gather(
            completed("plugwright why tr", runtime.environment),
            completed("plugwright free n", runtime.environment),
            completed("plugwright why -n kube-s", runtime.environment),
            completed("plugwright cordon m", runtime.environment),
            completed("plugwright cordon mock/gpu mock-1", runtime.environment, "zsh"),
        )
        objects = await for_kubectl(runtime.environment, "why", "t")
        files = await for_kubectl(runtime.environment, "lint", "-f", "")
    assert pods == ["plain,train"]
    assert nodes == ["plain,node-1"]
    assert spaces == ["plain,kube-system"]
    assert resources == ["plain,mock/gpu"]
    assert [ids[0], ids[2]] == ["plain", "mock/gpu on node-1, free"]
    assert ids[1].startswith("mock-1-")
    assert objects.out == "train\tPending\n:4\n"
    assert files.out == ":0\n"


async def test_a_cluster_that_does_not_answer_offers_nothing(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("clusters: [")
    assert await completed("plugwright why tr", runtime.environment) == [""]
    assert (await for_kubectl(runtime.environment, "why", "tr")).out == ":4\n"


@pytest.mark.parametrize("name", ["plugwright", "kubectl_complete-plugwright"])
async def test_ctrl_c_ends_a_completion_without_a_word(name: str, runtime: RuntimeDirectory, tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    server.setblocking(False)
    (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(port=server.getsockname()[1]))
    words = {"_PLUGWRIGHT_COMPLETE": "bash_complete", "COMP_WORDS": "plugwright why tr", "COMP_CWORD": "2"}
    environment = runtime.environment | (words if name == "plugwright" else {})
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program(name), "why", "tr", stdout=pipe, stderr=pipe, env=environment
    )
    connection, _ = await asyncio.get_running_loop().sock_accept(server)
    with server, connection:  # it never gets an answer
        process.send_signal(signal.SIGINT)
        assert await process.communicate() == (b"", b"")
    assert process.returncode == -signal.SIGINT
