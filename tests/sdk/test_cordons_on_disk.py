"""A cordon that was answered holds after a power cut: its file and its name are on disk."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ADD = """
import sys
from pathlib import Path
from plugwright.sdk.cordons import Cordon, Cordons
Cordons(Path(sys.argv[1])).add("mock/gpu", "one", Cordon("fan replaced"))
"""


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_a_cordon_is_synced_before_its_file_has_the_name_and_the_name_after_that(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace", tmp_path / "state" / "cordons.json"
    command = ["strace", "-y", "-o", str(trace), "-e", "trace=fsync,rename,renameat,renameat2", sys.executable]
    done = subprocess.run([*command, "-c", ADD, str(file)], capture_output=True, text=True, check=False)
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip("this system does not let us trace")
    assert done.returncode == 0, done.stderr
    calls = re.findall(r"^(\w+)\((.*)\) = 0$", trace.read_text(), re.MULTILINE)
    (first, content), (second, _), (third, directory) = calls
    assert (first, second[:6], third) == ("fsync", "rename", "fsync")
    assert re.search(rf"<{re.escape(str(file.parent))}/\.[^/>]+>", content)  # the temporary file, not its directory
    assert directory.endswith(f"<{file.parent}>")
