"""The images of `make dist`, started as the chart's package starts them: arguments, user, mounts, a read-only root."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.deploy.rendered import helm_or_skip
from tests.deploy.test_image import NATIVE, script
from tests.dist.containers import Container, Image, unpack, write_bundle
from tests.dist.test_artifacts import artifact, output
from tests.kubernetes.machine import ARCHITECTURE
from tests.requirements import unavailable

from plugwright import __version__
from plugwright.testing import Kubelet, KubeletSettings, pod_requesting

DIRECTORY = os.environ.get("PLUGWRIGHT_DIST")
Object = dict[str, Any]
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
SERVED: dict[str, tuple[str, Object, int]] = {  # by image: what the chart runs it for
    "plugwright": ("mock/gpu", {"mock": {"count": 2}}, 2),
    "plugwright-tools": ("nvidia.com/gpu", {"nvidia": {"simulate": "hgx-h100"}}, 8),
}
WRITE = "import pathlib; pathlib.Path('/usr/lib/plugwright-was-here').touch()"
WHO = "import os; print(*os.getresuid(), open('/proc/self/status').read().partition('CapEff:')[2].split()[0])"

pytestmark = [
    pytest.mark.skipif(DIRECTORY is None, reason="`make smoke` runs it"),
    pytest.mark.timeout(180),
]


class Released(NamedTuple):
    name: str
    machine: str
    image: Image


@pytest.fixture(scope="module", params=[f"{name}-{machine}" for machine in sorted(MACHINES) for name in SERVED])
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Released:
    name, _, machine = request.param.rpartition("-")
    archives = list(Path(DIRECTORY or "").glob(f"image-{name}-{__version__}-{machine}.tar"))
    if not archives and machine != ARCHITECTURE:
        pytest.skip(f"`make dist` made no image for {machine}")
    if not archives:
        unavailable("images", "`make dist` made no images: it says why")
    rootfs = tmp_path_factory.mktemp("rootfs")
    rootfs.chmod(0o755)
    return Released(name, machine, unpack(archives[0], rootfs))


def rendered(released: Released, directory: Path) -> Sequence[Object]:
    resource, family, _ = SERVED[released.name]
    config = f"config={json.dumps({'resources': [{'name': resource, **family}]})}"
    package = artifact(f"plugwright-{__version__}.tgz")
    flags = ("--kube-version", "1.36.4", "--namespace", "devices", "--set-json", config)
    text = output(helm_or_skip(), "template", "release", package, *flags, cwd=directory)
    return [each for each in yaml.safe_load_all(text) if each]


def container_of(released: Released, bundle: Path, host: Path, kind: str, objects: Sequence[Object]) -> Container:
    """The container of the chart's only workload of a kind, which runs this image."""
    [workload] = [each for each in objects if each["kind"] == kind]
    pod = workload["spec"]["template"]["spec"]
    assert {each["image"] for each in pod["containers"]} == {f"{released.name}:{__version__}"}
    configs = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ConfigMap"}
    write_bundle(bundle, host, released.image, pod, configs)
    return Container(bundle, f"plugwright-{os.getpid()}")


def probes(objects: Sequence[Object]) -> Iterator[Sequence[str]]:
    [daemons] = [each for each in objects if each["kind"] == "DaemonSet"]
    [container] = daemons["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe"):
        yield container[probe]["exec"]["command"]


async def test_the_daemon_of_the_chart_serves_devices_from_the_image(
    released: Released, tmp_path: Path, root: Path
) -> None:
    resource, _, count = SERVED[released.name]
    objects = rendered(released, tmp_path)
    async with (
        Kubelet(root / "var/lib/kubelet", KubeletSettings(timeout=90)) as kubelet,
        container_of(released, tmp_path, root, "DaemonSet", objects).running() as daemon,
    ):
        assert await kubelet.allocatable(resource, count) == count
        pod = await kubelet.admit(pod_requesting({resource: 1}))
        await kubelet.remove(pod)
        for command in probes(objects):
            assert (await daemon.execute(*command))[0] == 0
        assert await daemon.execute("python", "-c", WHO) == (0, f"0 0 0 {'0' * 16}\n")
        status, said = await daemon.execute("python", "-c", WRITE)
        assert (status, "Read-only file system" in said) == (1, True)
        assert await daemon.stop() == 0


async def test_the_check_of_the_chart_runs_in_the_image(released: Released, tmp_path: Path, root: Path) -> None:
    """As a user without any right, before an install or upgrade."""
    objects = [each for each in rendered(released, tmp_path) if each["metadata"]["name"].endswith("-check")]
    async with container_of(released, tmp_path, root, "Job", objects).running() as check:
        assert await check.ended() == 0
    assert "valid" in check.log()


def test_the_image_is_for_its_machine_with_the_native_parts_for_it(released: Released) -> None:
    assert released.image.config["architecture"] == released.machine
    assert released.image.config["config"]["Labels"]["org.opencontainers.image.version"] == __version__
    machine_of = script("native").machine_of
    parts = [released.image.rootfs / "usr/lib/plugwright" / part for part in NATIVE]
    found = {machine_of(part) for part in parts if part.exists() or released.name == "plugwright-tools"}
    assert found <= {MACHINES[released.machine]}
    assert found or released.name != "plugwright-tools"
