"""Whether and when a container is started again, and the phase of its pod."""

import pytest

from plugwright.apiserver.store import Object
from plugwright.cluster.nodes import restarts
from plugwright.cluster.nodes.container_runs import ContainerRun, lost_runs, run_of_status
from plugwright.cluster.nodes.pod_processes import go_duration
from plugwright.cluster.nodes.restarts import CrashLoopBackoff
from plugwright.kubelet import Phase

NOW = "2026-11-15T12:00:00Z"
MAIN, INIT, SIDECAR = {"name": "main"}, {"name": "first"}, {"name": "beside", "restartPolicy": "Always"}
NEW = ContainerRun()
RUNNING = NEW.started(NOW)
DONE, BAD = RUNNING.ended(0, NOW), RUNNING.ended(1, NOW)


def spec(policy: str = "Always") -> Object:
    return {"restartPolicy": policy, "containers": [MAIN], "initContainers": [INIT, SIDECAR]}


@pytest.mark.parametrize(
    ("policy", "container", "code", "again"),
    [
        ("Always", MAIN, 0, True),
        ("Always", MAIN, 1, True),
        ("OnFailure", MAIN, 0, False),
        ("OnFailure", MAIN, 1, True),
        ("Never", MAIN, 1, False),
        ("Always", INIT, 0, False),
        ("Always", INIT, 1, True),
        ("Never", INIT, 1, False),
        ("Never", SIDECAR, 0, True),
        ("Never", SIDECAR, 1, True),
    ],
)
def test_a_container_is_started_again_by_its_policy(policy: str, container: Object, code: int, again: bool) -> None:
    assert restarts.should_restart(spec(policy), container, code) is again


@pytest.mark.parametrize(("operator", "code", "again"), [("In", 42, True), ("In", 1, False), ("NotIn", 1, True)])
def test_a_rule_of_a_container_decides_before_its_policy(operator: str, code: int, again: bool) -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": operator, "values": [42]}}
    main = {"name": "main", "restartPolicy": "Never", "restartPolicyRules": [rule]}
    assert restarts.should_restart({"containers": [main]}, main, code) is again


def test_the_back_off_doubles_up_to_five_minutes_and_is_forgotten_after_ten() -> None:
    back_off, now, delays = CrashLoopBackoff(10, 300), 0.0, []
    for _ in range(8):
        delays.append(back_off.delay(now))
        now += delays[-1]
        back_off.restarted(now)
    assert delays == [0, 10, 20, 40, 80, 160, 300, 300]
    assert back_off.delay(now + 599) == 300
    assert back_off.delay(now + 601) == 0


@pytest.mark.parametrize(
    ("policy", "first", "beside", "main", "phase"),
    [
        ("Always", NEW, NEW, NEW, Phase.PENDING),
        ("Always", RUNNING, NEW, NEW, Phase.PENDING),
        ("Always", BAD, NEW, NEW, Phase.PENDING),
        ("Never", BAD, NEW, NEW, Phase.FAILED),
        ("Always", DONE, RUNNING, NEW.waiting("CreateContainerConfigError", ""), Phase.PENDING),
        ("Always", DONE, RUNNING, RUNNING, Phase.RUNNING),
        ("Always", DONE, RUNNING, BAD.waiting("CrashLoopBackOff", ""), Phase.RUNNING),
        ("Never", DONE, RUNNING, DONE, Phase.RUNNING),
        ("Never", DONE, BAD, DONE, Phase.SUCCEEDED),
        ("Never", DONE, BAD, BAD, Phase.FAILED),
        ("OnFailure", DONE, BAD, BAD, Phase.RUNNING),
        ("OnFailure", DONE, BAD, DONE, Phase.SUCCEEDED),
    ],
)
def test_the_phase_is_that_of_all_containers(
    policy: str, first: ContainerRun, beside: ContainerRun, main: ContainerRun, phase: Phase
) -> None:
    assert restarts.phase(spec(policy), {"first": first, "beside": beside, "main": main}) is phase


@pytest.mark.parametrize(
    ("seconds", "text"), [(10, "10s"), (80, "1m20s"), (300, "5m0s"), (0.05, "50ms"), (3600, "1h0m0s")]
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


def test_a_run_is_read_from_the_status_that_shows_it() -> None:
    running = {"state": {"running": {"startedAt": NOW}}, "lastState": {}, "restartCount": 0}
    assert run_of_status(running) == RUNNING
    ended = {"exitCode": 1, "reason": "Error", "startedAt": NOW, "finishedAt": NOW}
    crashing = {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
        "restartCount": 0,
    }
    assert run_of_status(crashing) == BAD.waiting("CrashLoopBackOff", "")
    assert run_of_status({"state": {"waiting": {}}, "restartCount": 0}) == NEW
    assert lost_runs({"main": RUNNING, "first": DONE}, NOW)["main"].exit_code == 137
    assert lost_runs({"main": RUNNING, "first": DONE}, NOW)["first"] == DONE
