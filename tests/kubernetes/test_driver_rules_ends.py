"""The effect that defects of NodeUnprepareResources and of reported health have on a real kubelet."""

import time

import pytest
from tests.kubernetes.rule_drivers import RuleDrivers
from tests.kubernetes.waiting import until


def asked(drivers: RuleDrivers, mutant: str) -> int:
    return len(drivers.processes[mutant].lines("to unprepare"))


@pytest.mark.plays("UNP-01", "UNP-03", "UNP-04")
def test_a_pod_does_not_end(drivers: RuleDrivers) -> None:
    mutants = ("answers-nothing", "refuses-unknown-end", "reads-claim-at-end")
    drivers.serve(*mutants)
    unknown = drivers.claim("unknown", drivers.request(mutants[1]), config=[drivers.parameters(mutants[1])])
    drivers.create(
        *drivers.claimed("rule-answers-nothing", "answers-nothing"),
        *drivers.claimed("rule-reads-claim", "reads-claim-at-end"),
        unknown,
        drivers.pod("rule-unknown-end", "unknown"),
    )
    drivers.run(["rule-answers-nothing", "rule-reads-claim"])
    drivers.not_prepared({"rule-unknown-end": "this driver takes no parameters"})
    drivers.lose("rule-reads-claim")
    names = ("rule-answers-nothing", "rule-unknown-end", "rule-reads-claim")
    drivers.kubectl("delete", "pod", *names, "--wait=false")
    until("the kubelet asks again", lambda: all(asked(drivers, mutant) > 1 for mutant in mutants))
    assert all(drivers.read(name).read()["metadata"]["deletionTimestamp"] for name in names)
    drivers.repair(*mutants)


@pytest.mark.full("the kubelet retries the end of a pod after up to three minutes")
@pytest.mark.plays("UNP-02")
def test_an_end_that_is_refused_the_second_time(drivers: RuleDrivers) -> None:
    """The kubelet calls the drivers of a pod in any order, and all of them again where one has failed."""
    drivers.serve("refuses-second-end", "answers-nothing")
    drivers.create(
        drivers.claim("second-end", drivers.request("refuses-second-end")),
        drivers.claim("no-end", drivers.request("answers-nothing")),
        drivers.pod("rule-second-end", "second-end", "no-end"),
    )
    drivers.run(["rule-second-end"])
    drivers.kubectl("delete", "pod", "rule-second-end", "--wait=false")
    until("it is asked again", lambda: asked(drivers, "refuses-second-end") > 1, limit=180)
    before = asked(drivers, "refuses-second-end")
    drivers.repair("answers-nothing")
    until("it is asked in vain", lambda: asked(drivers, "refuses-second-end") > before + 1)
    assert drivers.read("rule-second-end").read()["metadata"]["deletionTimestamp"]
    drivers.repair("refuses-second-end")
    until("it is gone", lambda: not drivers.kubectl.get("pod", "rule-second-end"))


@pytest.mark.plays("CDI-05")
def test_the_spec_of_a_claim_stays_when_its_pod_is_gone(drivers: RuleDrivers) -> None:
    drivers.serve("leaves-spec")
    drivers.create(*drivers.claimed("rule-spec", "leaves-spec"))
    drivers.run(["rule-spec"])
    drivers.read("rule-spec").delete()
    assert list((drivers.cluster.state / "run" / "cdi").glob("leaves-spec.test-*"))


@pytest.mark.essential
@pytest.mark.plays("DRH-01", "DRH-02", "DRH-03", "DRH-05")
def test_health_in_the_status_of_pods(drivers: RuleDrivers) -> None:
    mutants = ("serves-one-health", "waits-for-change", "reports-one-device", "unhealthy-without-taint")
    drivers.serve(*mutants)
    drivers.create(*(made for mutant in mutants for made in drivers.claimed(f"rule-{mutant}", mutant)))
    drivers.run(f"rule-{mutant}" for mutant in mutants)
    drivers.create(*drivers.claimed("rule-not-reported", "reports-one-device"))
    drivers.run(["rule-not-reported"])
    wanted = {
        "rule-serves-one-health": "Unknown" if drivers.cluster.version.startswith("1.36") else "Healthy",
        "rule-waits-for-change": "Unknown",
        "rule-reports-one-device": "Healthy",
        "rule-not-reported": "Unknown",
        "rule-unhealthy-without-taint": "Unhealthy",
    }
    until("they show it", lambda: _health(drivers, wanted) == wanted, last=lambda: _health(drivers, wanted))


@pytest.mark.full("health expires after 30 s")
@pytest.mark.plays("DRH-04")
def test_health_that_is_not_repeated_is_unknown(drivers: RuleDrivers) -> None:
    drivers.serve("reports-once")
    drivers.create(*drivers.claimed("rule-lease", "reports-once"))
    drivers.run(["rule-lease"])
    until("it is Unknown", lambda: _health(drivers, ["rule-lease"]) == {"rule-lease": "Unknown"})
    drivers.repair("reports-once")
    until("it is Healthy", lambda: _health(drivers, ["rule-lease"]) == {"rule-lease": "Healthy"})


def _health(drivers: RuleDrivers, names: "list[str] | dict[str, str]") -> dict[str, str]:
    """The kubelet looks at health when it writes the pod's status: a changed pod makes it do so."""
    drivers.kubectl("annotate", "pod", *names, f"looked-at={time.monotonic_ns()}", "--overwrite")
    return {name: ",".join(drivers.read(name).health().values()) for name in names}
