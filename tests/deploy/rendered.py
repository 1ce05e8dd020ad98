"""What the chart renders: from files that are committed, and from Helm where there is one."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from tests.kubernetes import building
from tests.requirements import unavailable

__all__ = [
    "CASES",
    "CHART",
    "GOLDEN",
    "ROOT",
    "Object",
    "built_helm_or_skip",
    "helm",
    "helm_or_skip",
    "host_mounts",
    "objects",
    "one",
]

Object = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "plugwright"
GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.name.removesuffix(".values.yaml") for path in GOLDEN.glob("*.values.yaml"))
_KUBERNETES = "1.36.4"  # said, because a Helm built from source takes it for 1.20


def objects(case: str) -> list[Object]:
    """What the committed file of this case has."""
    return [each for each in yaml.safe_load_all((GOLDEN / f"{case}.yaml").read_text()) if each]


def one(case: str, kind: str, name: str = "") -> Object:
    (found,) = [each for each in objects(case) if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return found


def built_helm_or_skip(recipe: building.Recipe) -> str:
    """helm 3, of `make go-programs`, or helm 4: three minutes of a CPU, so that CI's ring 1 does not require it."""
    if building.missing(recipe):
        unavailable(recipe.name, f"no {recipe.name}: build it by `python -m tests.kubernetes.building {recipe.name}`")
    return str(recipe.place / "helm")


def helm_or_skip() -> str:
    """The program of $HELM, on the PATH, or of `make go-programs`."""
    program = os.environ.get("HELM") or shutil.which("helm")
    if program:
        return program
    return built_helm_or_skip(building.HELM)


def helm(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`template` and `lint` of our chart; neither asks a cluster."""
    release = ["plugwright", "--namespace", "plugwright"] if command == "template" else []
    return subprocess.run(
        [helm_or_skip(), command, *release, CHART, "--kube-version", _KUBERNETES, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def host_mounts(pod: Object) -> list[Object]:
    """The directories of the node that families need, each with its volume and its mount."""
    volumes = {volume["name"]: volume.get("hostPath") for volume in pod["volumes"]}
    mounts = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"].startswith("host-")]
    return [{**mount, **volumes[mount["name"]]} for mount in mounts]
