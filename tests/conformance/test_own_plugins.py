"""Our own plugins keep every rule, with no exception, at all versions: mock, generic, NVIDIA's simulated, the SDK's.

`make verify KUBELET=all` asks every version; `make test` asks one version of two of them.
"""

import os
import sys
from pathlib import Path

import pytest
from tests.conformance.verifying import PATIENT, broken_rules, host_root

from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus
from plugwright.conformance.verifier import VerifyOptions

ROOT = Path(__file__).parents[2]
TAPE = ROOT / "examples" / "tape" / "tape.py"
VERSIONS = [f"1.{minor}" for minor in range(26, 38)]
KUBELET = os.environ.get("PLUGWRIGHT_VERIFY_KUBELET", "")
CONFIGURED = {
    "mock": "resources:\n- {name: mock/gpu, mock: {count: 4, numa: 2, nodes: true}}\n",
    "generic": "resources:\n- {name: example.com/null, paths: [/dev/null], count: 4}\n",
    "nvidia": "resources:\n- {name: nvidia.com/gpu, nvidia: {simulate: hgx-h100}}\n",
}
TIMED = {"RES-03", "RES-04", "RES-05"}  # a busy machine decides these as well
CASES = (
    [(name, version) for name in (*CONFIGURED, "tape") for version in (VERSIONS if KUBELET == "all" else [KUBELET])]
    if KUBELET
    else [("mock", "1.37"), ("tape", "1.26")]
)


def target(name: str, directory: Path) -> Target:
    if name == "tape":
        return Target((sys.executable, str(TAPE)), {"PLUGWRIGHT_KUBELET_DIR": "{root}"})
    file = directory / "plugwright.yaml"
    file.write_text(CONFIGURED[name])
    return Target((sys.executable, "-m", "plugwright", "run", "-c", str(file), "--kubelet-dir", "{root}"))


@pytest.mark.parametrize(("name", "version"), CASES)
async def test_our_own_plugin_keeps_every_rule(name: str, version: str, tmp_path: Path) -> None:
    options = VerifyOptions(version, PATIENT, host_root=host_root(tmp_path))
    verdicts = await runner.verify(target(name, tmp_path), catalogue.RULES, options)
    assert broken_rules(verdicts, but=TIMED) == []
    assert sum(verdict.status is RuleStatus.PASS for verdict in verdicts) > 70
