"""Our own plugins keep every rule, with no exception, at all versions: mock, generic, NVIDIA's simulated, the SDK's.

`make verify KUBELET=all` asks two plugins at every version whose kubelet behaves differently, the others at the current
versions, since the SDK answers for all of them; with --full every plugin at every version. `make test` asks two of them
at one version each.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.verifying import PATIENT, broken_rules, distinct_versions, host_root

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
CURRENT = ["1.36", "1.37"]
# A second daemon waits for the owner of the resource, unless it is a surge pod of the same release (tests/sdk).
RULES = [rule for rule in catalogue.RULES if rule.id != "END-07"]


def cases() -> Iterator[object]:
    if not KUBELET:
        yield from [("mock", "1.37"), ("tape", "1.26")]
        return
    distinct = distinct_versions(catalogue.RULES, oldest=26)
    for name in (*CONFIGURED, "tape"):
        asked = [KUBELET] if KUBELET != "all" else distinct if name in ("mock", "tape") else CURRENT
        yield from ((name, version) for version in asked)
        for version in VERSIONS if KUBELET == "all" else []:
            if version not in asked:
                yield pytest.param(name, version, marks=pytest.mark.full("every plugin at every version"))


def target(name: str, directory: Path) -> Target:
    if name == "tape":
        return Target((sys.executable, str(TAPE)), {"PLUGWRIGHT_KUBELET_DIR": "{root}"})
    file = directory / "plugwright.yaml"
    file.write_text(CONFIGURED[name])
    places = ("--kubelet-dir", "{root}", "--state-dir", "{root}/state", "--control-socket", "{root}/control.sock")
    return Target((sys.executable, "-m", "plugwright", "run", "-c", str(file), *places))


@pytest.mark.parametrize(("name", "version"), [*cases()])
async def test_our_own_plugin_keeps_every_rule(name: str, version: str, tmp_path: Path) -> None:
    options = VerifyOptions(version, PATIENT, host_root=host_root(tmp_path))
    verdicts = await runner.verify(target(name, tmp_path), RULES, options)
    assert broken_rules(verdicts, but=TIMED) == []
    assert sum(verdict.status is RuleStatus.PASS for verdict in verdicts) > 70
