"""The example that runs the command inside `go test`: each verdict is a subtest."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.requirements import unavailable

EXAMPLE = Path(__file__).parents[2] / "examples" / "go-test"
PLUGIN = Path(__file__).parent / "plugin.py"


def test_verdicts_are_subtests_of_go_test(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        unavailable("go", "needs Go")
    shutil.copytree(EXAMPLE, tmp_path / "example")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PLUGIN": f"{sys.executable} {PLUGIN} --root {{root}} --mutant response-per-device",
        "VERIFY_FLAGS": "--rules ALO-0[1-3] --rules REG-23",
        "GOFLAGS": "-mod=mod",
        "GOTOOLCHAIN": "local",
    }
    command = ["go", "test", "-count=1", "-v", "./..."]
    done = subprocess.run(
        command, cwd=tmp_path / "example", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    results = [line.strip().rpartition(" (")[0] for line in done.stdout.splitlines() if line.startswith("    ---")]
    assert results == [
        "--- SKIP: TestContractWithTheKubelet/REG-23@1.36",
        "--- PASS: TestContractWithTheKubelet/ALO-01@1.36",
        "--- PASS: TestContractWithTheKubelet/ALO-02@1.36",
        "--- FAIL: TestContractWithTheKubelet/ALO-03@1.36",
    ]
