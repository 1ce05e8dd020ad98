"""`make demo`: the mock plugin, served by `plugwright run`, seen from the kubelet's side.

Each step is told in a line and must be seen to happen; the exit code is 0 only if every one was.
"""

import asyncio
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from plugwright.model import PreferenceRequest
from tiny_kubelet import Endpoint, TinyKubelet, tiny_kubelet

RESOURCE = "mock/gpu"
CONFIG = """\
resources:
  - name: mock/gpu
    mock: {count: 10, model: Mock-A100, memory: 40Gi, numa: 2, links: pairs, nodes: true}
"""


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="plugwright-") as place:
        root = Path(place)
        (root / "plugwright.yaml").write_text(CONFIG)
        environment = {
            **os.environ,
            "PLUGWRIGHT_KUBELET_DIR": place,
            "PLUGWRIGHT_CONTROL_SOCKET": f"{place}/control.sock",
            "PLUGWRIGHT_STATE_DIR": f"{place}/state",
            "PLUGWRIGHT_LOG_LEVEL": "warning",
        }
        step("A kubelet (a tiny one, of this demo) listens; `plugwright run` serves this file:")
        print(CONFIG)
        async with tiny_kubelet(root) as kubelet, daemon(root, environment):
            await show(kubelet, environment)
        step("SIGTERM: the daemon ended its streams and left no socket behind")
        left = [path.name for path in (root / "device-plugins").iterdir()]
        expect(not left, f"left behind: {left}")


async def show(kubelet: TinyKubelet, environment: Mapping[str, str]) -> None:
    gpus = await kubelet.endpoint(RESOURCE, count=10)
    step(f"It registered {RESOURCE} and sent its list: {len(gpus.devices)} devices")
    for device in gpus.devices.values():
        print(f"    {device.id}  {device.health}  NUMA {','.join(map(str, device.numa))}")
    ids = await allocate(gpus)
    await fail_and_recover(kubelet, ids[0], environment)
    before = len(kubelet.registered)
    await kubelet.restart()
    await kubelet.endpoint(RESOURCE, count=10)
    step("The kubelet restarted, removing every socket, and the plugin registered again by itself")
    expect(len(kubelet.registered) > before, "it did not register again")
    step("What an operator sees:  plugwright status")
    await plugwright("status", environment=environment)


async def allocate(gpus: Endpoint) -> list[str]:
    [ids] = await gpus.client.prefer(PreferenceRequest(tuple(gpus.devices), (), 2))
    expect(len(ids) == 2, f"asked for two, was offered {ids}")
    [answer] = await gpus.client.allocate(ids)
    step("A container asks for two; the plugin prefers a linked pair and answers with what the container gets:")
    for name, value in answer.env.items():
        print(f"    env    {name}={value}")
    for node in answer.nodes:
        print(f"    node   {node.container_path} ({node.permissions}) from {node.host_path}")
    expect(answer.env["MOCK_VISIBLE_DEVICES"] == ",".join(ids), "the env names other devices")
    return ids


async def fail_and_recover(kubelet: TinyKubelet, device_id: str, environment: Mapping[str, str]) -> None:
    await plugwright("mock", "fail", device_id, "--reason", "fell off the bus", environment=environment)
    await kubelet.health(RESOURCE, device_id, "Unhealthy")
    step(f"{device_id} failed, and the kubelet knows")
    await plugwright("mock", "recover", device_id, environment=environment)
    await kubelet.health(RESOURCE, device_id, "Healthy")
    step(f"{device_id} recovered, and the kubelet knows")


@asynccontextmanager
async def daemon(root: Path, environment: Mapping[str, str]) -> AsyncIterator[None]:
    command = ("run", "-c", str(root / "plugwright.yaml"))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "plugwright", *command, env=environment)
    try:
        yield
    finally:
        process.terminate()
        expect(await process.wait() == 0, "the daemon did not end with 0")


async def plugwright(*arguments: str, environment: Mapping[str, str]) -> None:
    print(f"    $ plugwright {shlex.join(arguments)}", flush=True)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "plugwright", *arguments, env=environment)
    expect(await process.wait() == 0, f"plugwright {arguments[0]} failed")


def step(text: str) -> None:
    print(f"\n▸ {text}", flush=True)


def expect(fact: bool, otherwise: str) -> None:
    if not fact:
        sys.exit(f"demo: {otherwise}")


if __name__ == "__main__":
    asyncio.run(main())
