"""The programs of a cluster, built from the Go module proxy and kept in a cache.

    python -m tests.kubernetes.building [helm] [helm4] [VERSION …]

builds helm 3, helm 4, or the programs of a cluster of each version, if they are not in the cache. `machine` installs
the programs that come from the machine's packages.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from plugwright.cli.counting_line import CountingLine

__all__ = [
    "CONTAINERD",
    "DEFAULT_VERSION",
    "ETCD",
    "HELM",
    "HELM_4",
    "OLDER_KUBECTL",
    "BuildFailed",
    "Recipe",
    "build",
    "cache",
    "kubectl",
    "kubernetes",
    "missing",
    "one_at_a_time",
]

DEFAULT_VERSION = "1.36.4"
OLDER_KUBECTL = "1.35.4"
_STAGED = re.compile(r"^\s*(?:require\s+)?(k8s\.io/[\w./-]+) v0\.0\.0\s*$", re.MULTILINE)
_SHOWN_LINES = 30
_CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
_KUBERNETES = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")


class BuildFailed(Exception):
    """A program could not be built; the text has the last words of `go`."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Programs of one module: where they come from and how they are linked."""

    name: str
    module: str
    version: str
    packages: Mapping[str, str]  # of each program
    tags: str = ""
    linked_in: Mapping[str, str] | None = None  # texts that the linker sets
    staging: str = ""  # the version of what the module itself requires as v0.0.0

    @property
    def place(self) -> Path:
        """The directory where the programs are, once they are built."""
        return cache() / f"{self.name}-{self.version}"


CONTAINERD = Recipe(
    "containerd",
    "github.com/containerd/containerd/v2",
    "2.4.2",
    {each: f"github.com/containerd/containerd/v2/cmd/{each}" for each in _CONTAINERD},
    tags="no_btrfs no_zfs no_devmapper",
)
ETCD = Recipe("etcd", "go.etcd.io/etcd/server/v3", "3.6.16", {"etcd": "go.etcd.io/etcd/server/v3"})
HELM = Recipe("helm", "helm.sh/helm/v3", "3.21.4", {"helm": "helm.sh/helm/v3/cmd/helm"})
HELM_4 = Recipe("helm4", "helm.sh/helm/v4", "4.3.1", {"helm": "helm.sh/helm/v4/cmd/helm"})
_HELMS = {each.name: [each] for each in (HELM, HELM_4)}


def kubernetes(version: str) -> Recipe:
    """The five programs of Kubernetes; they say that they are `version`, as those of a release do."""
    return _of_kubernetes("kubernetes", version, _KUBERNETES)


def kubectl(version: str) -> Recipe:
    """kubectl alone, in a fifth of the time."""
    return _of_kubernetes("kubectl", version, ("kubectl",))


def _of_kubernetes(name: str, version: str, programs: tuple[str, ...]) -> Recipe:
    major, minor, _ = version.split(".", 2)
    about = "k8s.io/component-base/version"
    return Recipe(
        name,
        "k8s.io/kubernetes",
        version,
        {program: f"k8s.io/kubernetes/cmd/{program}" for program in programs},
        linked_in={
            f"{about}.gitVersion": f"v{version}",
            f"{about}.gitMajor": major,
            f"{about}.gitMinor": minor,
            f"{about}.gitTreeState": "clean",
        },
        staging=f"v0.{version.removeprefix('1.')}",
    )


def cache() -> Path:
    told = os.environ.get("PLUGWRIGHT_CACHE")
    return Path(told) if told else Path(__file__).parents[2] / ".cache" / "kubernetes"


def missing(recipe: Recipe) -> bool:
    return not all((recipe.place / program).is_file() for program in recipe.packages)


def build(recipe: Recipe) -> Path:
    """The directory with the programs of `recipe`, which are built if they are not there."""
    with one_at_a_time(recipe.place.name):
        if missing(recipe):
            _build(recipe)
    return recipe.place


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """A lock among the processes that share the cache: two that need the same programs build them once."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe) -> None:
    """In a module of its own: `go install` refuses modules that replace others, as most of these do."""
    module, made = (_emptied(recipe.place.with_name(f"{recipe.place.name}.{each}")) for each in ("module", "made"))
    required = f"{recipe.module}@v{recipe.version}"
    _go(module, "mod", "init", "plugwright.test/programs")
    _go(module, "mod", "edit", f"-require={required}", *_replacements(module, required, recipe.staging))
    texts = " ".join(f"-X {name}={text}" for name, text in (recipe.linked_in or {}).items())
    print(f"building {recipe.name} {recipe.version}: {', '.join(recipe.packages)}", flush=True)
    # In one call, so that one program is linked while another is compiled. A directory takes the packages' own names.
    output = made if len(recipe.packages) > 1 else made / next(iter(recipe.packages))
    flags = ["-v", "-tags", recipe.tags, "-ldflags", f"-s -w {texts}", "-o", str(output)]
    _go(module, "build", *flags, *recipe.packages.values())
    shutil.rmtree(recipe.place, ignore_errors=True)
    made.rename(recipe.place)  # all or nothing: what was interrupted is never taken for done
    shutil.rmtree(module)


def _emptied(directory: Path) -> Path:
    """Empty, whatever a run that was interrupted has left in it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


def _replacements(module: Path, required: str, staging: str) -> list[str]:
    """Kubernetes requires its own libraries at v0.0.0; each is published under a version of its own."""
    if not staging:
        return []
    described = json.loads(_go(module, "mod", "download", "-json", required))
    staged = sorted(set(_STAGED.findall(Path(described["GoMod"]).read_text())))
    return [f"-replace={each}={each}@{staging}" for each in staged]


def _go(directory: Path, *arguments: str) -> str:
    flags = {"GOFLAGS": "-mod=mod -trimpath -buildvcs=false", "CGO_ENABLED": "0", "GOWORK": "off"}
    with (
        CountingLine("packages compiled") as line,
        TemporaryFile("w+") as output,
        subprocess.Popen(
            ["go", *arguments], cwd=directory, env={**os.environ, **flags}, stdout=output, stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stderr is not None
        errors: list[str] = []
        for error in process.stderr:  # with -v, the name of each package
            errors.append(error.rstrip())
            line.show(len(errors))
        code = process.wait()
        output.seek(0)
        written = output.read()
    if code:
        words = "\n".join((errors or written.splitlines())[-_SHOWN_LINES:])
        raise BuildFailed(f"go {' '.join(arguments)} failed:\n{words}")
    return written


def main(names: list[str]) -> None:
    try:
        for name in names or [DEFAULT_VERSION]:
            for recipe in _HELMS.get(name) or [ETCD, CONTAINERD, kubernetes(name)]:
                print(build(recipe))
    except BuildFailed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
