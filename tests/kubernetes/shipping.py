"""What people install: the images, built here because there is no registry, and the chart."""

import hashlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes import building, machine
from tests.kubernetes.cluster import Cluster

from plugwright import __version__

__all__ = ["CHART", "PREVIOUS", "Previous", "Release", "build_images", "build_previous", "build_project_image"]

_ROOT = Path(__file__).parents[2]
CHART = _ROOT / "deploy" / "helm" / "plugwright"
_TOOLS = ("buildah", "mmdebstrap")
_SOURCES = ("src", "deploy", "native")
_IMAGES = {"image": "plugwright", "toolsImage": "plugwright-tools"}  # of each value of the chart
# The version before this one: a tag, once there is a release; until then the last commit with the older chart.
PREVIOUS = "499349a"


def build_images() -> list[Path]:
    """Archives of both images, made from Debian packages and this tree, unless they are there already."""
    machine.install(*(tool for tool in _TOOLS if not shutil.which(tool)))
    place = building.cache() / "image"
    current, tree = place / "current", _tree()
    with building.one_at_a_time("image"):
        if not (current / tree).exists():
            print("building the images", flush=True)
            _run(_ROOT / "deploy" / "build-image.sh", "--base", "debian", "--output", place)
            shutil.rmtree(current, ignore_errors=True)
            current.mkdir()
            for name in _IMAGES.values():
                (place / f"{name}.tar").rename(current / f"{name}.tar")
            (current / tree).touch()
    return [current / f"{name}.tar" for name in _IMAGES.values()]


def _tree() -> str:
    """A name for the content of the files that the images are made of."""
    files = (path for source in _SOURCES for path in sorted((_ROOT / source).rglob("*")) if path.is_file())
    digest = hashlib.sha256()
    for path in [_ROOT / "pyproject.toml", _ROOT / "uv.lock", *files]:
        if "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Previous:
    """An earlier version: its image, under a version of its own, and its chart."""

    archive: Path
    tag: str
    chart: Path


def build_previous(directory: Path) -> Previous:
    """The version before this one, from the history; KeyError where there is none, as in a shallow clone."""
    known = subprocess.run(["git", "cat-file", "-e", f"{PREVIOUS}^{{commit}}"], cwd=_ROOT, check=False)
    if known.returncode:
        raise KeyError(PREVIOUS)
    _run("sh", "-c", f"git -C {_ROOT} archive {PREVIOUS} | tar -x -C {directory}")
    version = directory / "src" / "plugwright" / "version.py"
    version.write_text(version.read_text().replace(f'"{__version__}"', '"0.0.0"'))
    place = building.cache() / "image"
    print("building the image of the version before this one", flush=True)
    with building.one_at_a_time("image"):
        _run(directory / "deploy" / "build-image.sh", "--base", "debian", "--output", place, "plugwright")
        archive = (place / "plugwright.tar").rename(directory / "image.tar")
    return Previous(archive, "0.0.0", directory / "deploy" / "helm" / "plugwright")


def build_project_image(project: Path, name: str) -> Path:
    """The archive of an author's image, on ours, which `build_images` has left in its storage."""
    place = building.cache() / "image"
    storage = ("buildah", "--root", place / "storage", "--runroot", place / "run")
    image, archive = f"localhost/{name}:0.1.0", project / "image.tar"
    base = f"BASE=localhost/plugwright:{__version__}"
    with building.one_at_a_time("image"):
        _run(*storage, "bud", "--pull-never", "--format", "docker", "--build-arg", base, "--tag", image, project)
        _run(*storage, "push", image, f"docker-archive:{archive}:{image}")
    return archive


def _run(*command: str | Path) -> None:
    ours = {"DEBIAN_FRONTEND": "noninteractive", "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
    environment = {**os.environ, **ours}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]} failed:\n{(done.stderr or done.stdout)[-2000:]}"


class Release:
    """One release of the chart, in a namespace of its own name."""

    def __init__(self, cluster: Cluster, helm: Path, name: str) -> None:
        self.cluster, self.name = cluster, name
        self._helm = helm

    def install(self, *values: str, chart: Path = CHART) -> None:
        self._call("install", self.name, str(chart), "--create-namespace", *self._values(values))

    def upgrade(self, *values: str, chart: Path = CHART) -> None:
        self._call("upgrade", self.name, str(chart), *self._values(values))

    def rollback(self) -> None:
        self._call("rollback", self.name)

    def test(self) -> None:
        self._call("test", self.name, "--timeout=120s")

    def uninstall(self) -> None:
        self._call("uninstall", self.name)

    def remove(self) -> None:
        """Uninstalls it if it is installed."""
        self._call("uninstall", self.name, "--ignore-not-found")

    def rolled_out(self) -> None:
        self._kubectl("rollout", "status", f"daemonset/{self.name}", "--timeout=120s")

    def sync(self) -> None:
        """Has the kubelet look at the daemons' pods, and so at their ConfigMaps, now instead of a minute later."""
        for pod in self.pods():
            self._kubectl("annotate", pod, f"plugwright.test/looked-at={time.time()}", "--overwrite")

    def pods(self) -> list[str]:
        """The names of its daemons' pods."""
        chosen = f"--selector=app.kubernetes.io/instance={self.name}"
        return sorted(self._kubectl("get", "pods", "--output=name", chosen).split())

    def plugwright(self, *arguments: str) -> str:
        """A command in the daemon's container."""
        return self._kubectl("exec", f"daemonset/{self.name}", "--", "plugwright", *arguments)

    def logs(self) -> str:
        return self._kubectl("logs", f"daemonset/{self.name}", "--tail=-1")

    def leftovers(self) -> list[str]:
        """Whatever in the cluster still has its name."""
        kinds = (
            "clusterroles,clusterrolebindings,roles,rolebindings,priorityclasses,"
            "cronjobs,jobs,serviceaccounts,configmaps,daemonsets,pods"
        )
        return [each for each in self._kubectl("get", kinds, "--output=name").split() if self.name in each]

    def _kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(f"--namespace={self.name}", *arguments)

    def _values(self, values: tuple[str, ...]) -> list[str]:
        images = [f"{key}.repository=localhost/{name}" for key, name in _IMAGES.items()]
        policies = [f"{key}.pullPolicy=Never" for key in _IMAGES]
        return [f"--set={each}" for each in (*images, *policies, *values)]

    def _call(self, *arguments: str) -> None:
        done = self.cluster.run(self._helm, f"--namespace={self.name}", *arguments)
        assert done.returncode == 0, done.stderr
