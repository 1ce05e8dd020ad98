"""The table of fields against Kubernetes' own types in Go: what it says, and the bytes and JSON of random objects.

No cluster is needed. `PLUGWRIGHT_REWRITE_FIELDS=1` writes the table anew, and the objects that ring 1 reads and writes.
"""

import os
import subprocess
from pathlib import Path

import pytest
from tests.apiserver.test_kubernetes_fields import OBJECTS, check
from tests.requirements import go_program, unavailable

from plugwright.apiserver import kubernetes_fields

SOURCE = Path(__file__).parent / "kubernetes_types"
TABLE = Path(kubernetes_fields.__file__).with_suffix(".txt")
SCHEMA = "applyconfigurations/internal/internal.go"  # of client-go: how server-side apply merges
RECORDED = ("ConfigMap", "Event", "Lease", "Namespace", "Node", "Pod", "Secret", "ServiceAccount")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_program(SOURCE, tmp_path_factory.mktemp("go"))


def printed(program: Path, *arguments: str) -> str:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_table_is_what_the_types_of_go_say(program: Path) -> None:
    modules = subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    schema = Path(modules) / "k8s.io" / "client-go@v0.37.0" / SCHEMA
    if not schema.exists():
        unavailable("go", "needs the module k8s.io/client-go v0.37.0: `make go-programs` downloads it")
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
