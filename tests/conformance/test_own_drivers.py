"""Our own DRA driver keeps every rule, with no exception: mock, generic, NVIDIA's simulated with parts and with shares.

`make verify` asks one version. `make verify KUBELET=all` asks the mock driver at every version whose kubelet behaves
differently, the others at 1.37; with --full all of them at all versions. `make test` asks a few rules.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance.verifying import PATIENT, broken_rules, distinct_versions, driver_options, host_root

from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus

VERSIONS = [f"1.{minor}" for minor in range(34, 38)]
KUBELET = os.environ.get("PLUGWRIGHT_VERIFY_KUBELET", "")
# What cannot be asked of the devices of each: counters, exclusive devices, shares, devices that one claim has together.
COUNTERS, EXCLUSIVE = {"SLC-08", "SLC-09"}, {"PRP-13", "PRP-14", "PRP-15", "PRP-19", "DST-01", "DST-07", "DST-08"}
SHARES = {"PRP-20", "PRP-21", "CDI-06"}
TOGETHER = {"PRP-23", "PRP-24", "PRP-25", "UNP-05", "UNP-06", "UNP-07", "DST-09"}
OPTIONS = {"PAR-04", "PAR-05", "DRH-06", "SLC-18"}  # they need --parameters or --fail-command
CONFIGURED = {
    "mock": ("name: example.com/part, mock: {count: 4, nodes: true, model: A100, memory: 40Gi}", COUNTERS | SHARES),
    "generic": ("name: example.com/null, paths: [/dev/null, /dev/zero, /dev/full]", COUNTERS | SHARES),
    "nvidia": ("name: nvidia.com/gpu, nvidia: {simulate: hgx-h100}", COUNTERS | SHARES),
    "nvidia with MIG devices": (
        "name: nvidia.com/gpu, nvidia: {simulate: hgx-h100-mig, mig: single}",
        SHARES | TOGETHER,
    ),
    "nvidia with shares": (
        "name: nvidia.com/gpu, nvidia: {simulate: hgx-h100, share: {by: time-slicing, replicas: 4}}",
        COUNTERS | EXCLUSIVE | TOGETHER,
    ),
}
QUICK = ["DRG-01", "SLC-05", "SLC-11", "PRP-01", "PRP-05", "UNP-04", "CDI-02"]
TIMED = {"DRG-06", "PRP-18", "SLC-17"}  # a busy machine decides these as well
LIMITS = replace(PATIENT, wait=3.0)  # our driver lets claims wait for their devices


def cases() -> Iterator[object]:
    if not KUBELET:
        yield ("mock", "1.37")
        return
    distinct = distinct_versions(catalogue.DRIVER_RULES, oldest=34)
    for name in CONFIGURED:
        asked = [KUBELET] if KUBELET != "all" else distinct if name == "mock" else ["1.37"]
        yield from ((name, version) for version in asked)
        for version in VERSIONS if KUBELET == "all" else []:
            if version not in asked:
                yield pytest.param(name, version, marks=pytest.mark.full("every driver at every version"))


def target(name: str, directory: Path) -> Target:
    """The file names the CDI directory, which is another in each session."""
    template = directory / "template.yaml"
    template.write_text(f'host: {{"cdi": "CDI"}}\nresources:\n- {{{CONFIGURED[name][0]}, serve: dra}}\n')
    run = f"{sys.executable} -m plugwright run -c {{root}}/own.yaml"
    command = f"sed s,CDI,{{cdi}}, {template} > {{root}}/own.yaml; exec {run}"
    return Target(("sh", "-c", command), {"PLUGWRIGHT_KUBELET_DIR": "{root}", "PLUGWRIGHT_STATE_DIR": "{root}/state"})


@pytest.mark.parametrize(("name", "version"), [*cases()])
async def test_our_own_driver_keeps_every_rule(name: str, version: str, tmp_path: Path) -> None:
    rules = catalogue.select([] if KUBELET else QUICK, dra=True)
    options = replace(driver_options(version, LIMITS), host_root=host_root(tmp_path))
    verdicts = await runner.verify(target(name, tmp_path), rules, options)
    assert broken_rules(verdicts, but=TIMED) == []
    not_asked = {verdict.rule.id for verdict in verdicts if verdict.status is RuleStatus.NOT_APPLICABLE}
    assert not_asked == (CONFIGURED[name][1] | OPTIONS if KUBELET else set())
