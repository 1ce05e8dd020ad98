"""The systemd unit."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.deploy.rendered import ROOT

UNIT = ROOT / "deploy" / "plugwright.service"
PROGRAM = "/opt/plugwright/bin/plugwright"


def setting(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_it_runs_the_daemon_without_any_capability() -> None:
    assert setting("ExecStart") == [f"{PROGRAM} run -c /etc/plugwright/plugwright.yaml"]
    assert setting("CapabilityBoundingSet") == [""]
    assert setting("NoNewPrivileges") == ["yes"]
    assert setting("ProtectSystem") == ["strict"]


def test_a_kubelet_that_restarts_does_not_take_it_along() -> None:
    for tie in ("Requires", "BindsTo", "PartOf", "Requisite"):
        assert setting(tie) == []


def test_it_may_write_where_plugins_and_claims_of_the_node_are() -> None:
    kubelet = "/var/lib/kubelet"
    (paths,) = setting("ReadWritePaths")
    # A kubelet with another --root-dir has only the first of them here.
    optional = [f"-{path}" for path in (f"{kubelet}/plugins", f"{kubelet}/plugins_registry", "/var/run/cdi")]
    assert paths.split() == [f"{kubelet}/device-plugins", *optional]
    assert setting("ExecStartPre") == ["-+/bin/mkdir -p -m 755 /var/run/cdi"]  # /run is empty after a boot
    assert setting("StateDirectory") == ["plugwright"]  # --state-dir, and --node-dir


def test_systemd_hears_from_the_daemon_itself() -> None:
    assert setting("Type") == ["notify"]
    assert setting("NotifyAccess") == ["main"]
    assert setting("WatchdogSec") == ["30"]
    assert setting("ExecReload") == ["/bin/kill -HUP $MAINPID"]
    assert "AF_UNIX" in setting("RestrictAddressFamilies")[0].split()  # that of the notices


def test_systemd_understands_it(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze")
    there = tmp_path / "plugwright.service"  # with a program that is there: it looks for that one too
    there.write_text(UNIT.read_text().replace(PROGRAM, "/bin/true"))
    result = subprocess.run(
        [program, "verify", "--man=no", there], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in result.stderr.splitlines() if there.name in line]
    assert complaints == []
