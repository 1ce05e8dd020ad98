"""Our chart, and that of a project of `plugwright new`, installed by helm on `plugwright up --run`."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import lightkube
import pytest
from click.testing import CliRunner
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.batch_v1 import CronJob
from lightkube.resources.core_v1 import ConfigMap, Pod, ServiceAccount
from tests.cli.processes import ended
from tests.cluster.up.clusters import RuntimeDirectory, Up, allocatable, until_node
from tests.deploy.rendered import CHART, built_helm_or_skip
from tests.kubernetes import building

from plugwright.cli.main import cli

RESOURCE = "acme.com/widget"
OF_RELEASE: dict[str, Any] = {"app.kubernetes.io/instance": "devices"}
# Of the clean-up: it removes the resource from the nodes, then these objects.
CLEANUP = ["devices-plugwright-cleanup", "devices-plugwright-cleanup"]
WAITING = ("--wait", "--timeout", "60s")

both_helms = pytest.mark.parametrize("recipe", [building.HELM, building.HELM_4], ids=["helm-3", "helm-4"])


class Cluster:
    def __init__(self, up: Up, helm: str, home: Path) -> None:
        self.up, self.helm = up, helm
        self.environment = {"KUBECONFIG": str(up.kubeconfig), "HOME": str(home), "PATH": os.environ["PATH"]}

    async def run(self, *arguments: object) -> str:
        done = await ended([self.helm, *map(str, arguments)], self.environment)
        assert done.code == 0, done.err
        return done.out

    def until(self, resource: str, count: str | None) -> None:
        with self.up.client as api:
            until_node(api, "node-1", lambda node: allocatable(node).get(resource) == count)


@asynccontextmanager
async def cluster(tmp_path: Path, recipe: building.Recipe, *flags: object) -> AsyncIterator[Cluster]:
    helm = built_helm_or_skip(recipe)
    async with RuntimeDirectory(tmp_path).up("--run", "--bare", "--plugin-grace", "1s", *flags) as up:
        yield Cluster(up, helm, tmp_path)


async def no_pods(api: lightkube.Client) -> None:
    """helm does not wait for the pods of a DaemonSet."""
    async with asyncio.timeout(30):
        while list(api.list(Pod, namespace="default", labels=OF_RELEASE)):
            await asyncio.sleep(0)


def left(api: lightkube.Client) -> list[str]:
    """The names of the release's objects."""
    kinds = (ConfigMap, CronJob, DaemonSet, ServiceAccount)
    objects: list[Any] = [each for kind in kinds for each in api.list(kind, namespace="default", labels=OF_RELEASE)]
    return [str(each.metadata.name) for each in objects]


@both_helms
async def test_our_chart_serves_its_devices_and_is_uninstalled(tmp_path: Path, recipe: building.Recipe) -> None:
    async with cluster(tmp_path, recipe) as installed:
        values = f"mock.enabled=true,mock.resource={RESOURCE}"
        await installed.run("install", "devices", CHART, "--set", values, *WAITING)
        installed.until(RESOURCE, "10")
        with installed.up.client as api:
            [daemon_set] = api.list(DaemonSet, namespace="default", labels=OF_RELEASE)
            assert daemon_set.status is not None
            assert daemon_set.status.numberReady == 1
            await installed.run("uninstall", "devices", *WAITING)
            installed.until(RESOURCE, "0")  # its plugin has gone; the clean-up removes the key within minutes
            await no_pods(api)
            assert left(api) == CLEANUP


@both_helms
async def test_the_chart_of_a_new_project_serves_its_devices(tmp_path: Path, recipe: building.Recipe) -> None:
    project, devices = tmp_path / "npu", tmp_path / "devices"
    made = CliRunner().invoke(cli, ["new", "npu", "--dir", str(project), "--chart", f"file://{CHART}"])
    assert made.exit_code == 0, made.output
    devices.mkdir()
    (devices / "one").write_text("ok\n")
    program = [sys.executable, "-m", "plugwright"]
    entrypoint = shlex.join(["env", f"PYTHONPATH={project}", f"NPU_DIR={devices}", *program])
    async with cluster(tmp_path, recipe, "--entrypoint", f"npu={entrypoint}") as installed:
        await installed.run("dependency", "build", project / "chart")
        paths = json.dumps([{"path": str(devices), "readOnly": True}])  # not /run/npu of this machine
        await installed.run(
            "install", "npu", project / "chart", "--set-json", f"plugwright.hostPaths={paths}", *WAITING
        )
        with installed.up.client as api:
            until_node(api, "node-1", lambda node: "1" in allocatable(node).values())
