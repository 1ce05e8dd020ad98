"""The table of fields against Kubernetes' own types in Go: what it says, and the bytes and JSON of random objects.

No cluster is needed. `PLUGWRIGHT_REWRITE_FIELDS=1` writes the table anew, and the objects that ring 1 reads and writes.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.apiserver.test_kubernetes_fields import OBJECTS, check

from plugwright.apiserver import kubernetes_fields

SOURCE = Path(__file__).parent / "kubernetes_types"
TABLE = Path(kubernetes_fields.__file__).with_suffix(".txt")
OFFLINE = {"CGO_ENABLED": "0", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
SCHEMA = "applyconfigurations/internal/internal.go"  # of client-go: how server-side apply merges
RECORDED = ("ConfigMap", "Event", "Lease", "Namespace", "Node", "Pod", "Secret", "ServiceAccount")


def go(*arguments: str) -> str:
    environment = {**os.environ, **OFFLINE}
    run = subprocess.run(
        ["go", *arguments], cwd=SOURCE, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    if run.returncode:
        pytest.skip(f"needs the modules of Kubernetes' API for Go, downloaded before: {run.stderr.strip()[:200]}")
    return run.stdout.strip()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None:
        pytest.skip("needs Go, to ask Kubernetes' own types")
    built = tmp_path_factory.mktemp("go") / "kubernetes_types"
    go("build", "-trimpath", "-o", str(built), ".")
    return built


def printed(program: Path, *arguments: str) -> str:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_table_is_what_the_types_of_go_say(program: Path) -> None:
    schema = Path(go("env", "GOMODCACHE")) / "k8s.io" / "client-go@v0.37.0" / SCHEMA
    if not schema.exists():
        pytest.skip("needs the module k8s.io/client-go v0.37.0, downloaded before")
    table = printed(program, "fields", str(schema))
    if os.environ.get("PLUGWRIGHT_REWRITE_FIELDS"):
        TABLE.write_text(table)
    assert TABLE.read_text() == table


@pytest.mark.parametrize("seed", range(10))
def test_random_objects_are_read_and_written_byte_for_byte_as_go_does(program: Path, seed: int) -> None:
    lines = printed(program, "objects", str(seed), "1").splitlines()
    if seed == 0 and os.environ.get("PLUGWRIGHT_REWRITE_FIELDS"):
        pairs = zip(lines[::2], lines[1::2], strict=True)
        kept = [
            f"{line}\n{content}\n"
            for line, content in pairs
            if line.split()[0].endswith(tuple(f".{kind}" for kind in RECORDED))
        ]
        OBJECTS.write_text("".join(kept))
    for line, content in zip(lines[::2], lines[1::2], strict=True):
        check(line, content)
