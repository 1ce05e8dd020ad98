"""A pod's status, composed from what the kubelet knows of it: states, times and devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.pods_and_nodes import pod_object

from plugwright.apiserver.store import Object
from plugwright.cluster.nodes import pod_status
from plugwright.cluster.nodes.container_runs import ContainerRun
from plugwright.cluster.nodes.pod_status import PodStatusInputs
from plugwright.kubelet import Phase, Pod, pods
from plugwright.kubelet.devicemanager.manager import DeviceHealth
from plugwright.model import Health

FIRST, LATER = "2026-11-15T12:00:00Z", "2026-11-15T12:05:00Z"
RUNS = st.sampled_from(
    [
        ContainerRun(),
        ContainerRun().waiting("CreateContainerConfigError", "no"),
        ContainerRun().started(FIRST),
        ContainerRun().started(FIRST).ended(0, FIRST),
        ContainerRun().started(FIRST).ended(1, FIRST).waiting("CrashLoopBackOff", "back-off 10s"),
        ContainerRun().started(FIRST).ended(1, FIRST).started(LATER),
    ]
)
INITS = [{"name": "first", "image": "b:1"}, {"name": "beside", "image": "b:1", "restartPolicy": "Always"}]


def stored(**spec: object) -> Object:
    pod = pod_object("p", {"mock/gpu": "1"}, **spec)
    metadata = {**pod["metadata"], "namespace": "default", "uid": "u", "generation": 1}
    scheduled = {"type": "PodScheduled", "status": "True"}
    return {**pod, "metadata": metadata, "status": {"qosClass": "BestEffort", "conditions": [scheduled]}}


def started(manifest: Object, phase: Phase = Phase.RUNNING) -> Pod:
    pod = Pod(pods.read(manifest), phase)
    for container in pod.containers.values():
        container.starts, container.reason = 1, ""
        container.running = container.spec.kind != "init"
    return pod


def status_of(manifest: Object, pod: Pod, now: str = FIRST, **more: object) -> Object:
    return pod_status.status(manifest, pod, PodStatusInputs(now, "172.18.0.2", "10.244.0.2", **more))  # type: ignore[arg-type]


def conditions(status: Object) -> dict[str, tuple[str, str]]:
    return {condition["type"]: (condition["status"], condition.get("reason", "")) for condition in status["conditions"]}


def test_times_stay_when_the_status_is_composed_again() -> None:
    manifest = stored(initContainers=INITS)
    pod = started(manifest)
    status = status_of(manifest, pod)
    assert status_of({**manifest, "status": status}, pod, LATER) == status


def test_a_restarted_container_shows_how_its_last_run_ended() -> None:
    manifest = stored()
    pod = started(manifest)
    status = status_of(manifest, pod)
    pod.containers["main"].starts = 2
    again = status_of({**manifest, "status": status}, pod, LATER)["containerStatuses"][0]
    assert again["restartCount"] == 1
    assert again["state"] == {"running": {"startedAt": LATER}}
    before = status["containerStatuses"][0]["containerID"]
    assert again["lastState"]["terminated"]["containerID"] == before != again["containerID"]
    assert again["lastState"]["terminated"]["startedAt"] == FIRST


def test_a_container_that_waits_keeps_the_pod_from_being_ready() -> None:
    manifest = stored()
    pod = Pod(pods.read(manifest))
    pod.containers["main"].reason, pod.containers["main"].message = "CreateContainerConfigError", "no such device"
    status = status_of(manifest, pod)
    assert status["phase"] == "Pending"
    assert status["containerStatuses"][0]["state"] == {
        "waiting": {"reason": "CreateContainerConfigError", "message": "no such device"}
    }
    assert conditions(status)["Ready"] == ("False", "ContainersNotReady")
    assert "containerID" not in status["containerStatuses"][0]


def test_containers_wait_for_an_init_container_that_cannot_start() -> None:
    manifest = stored(initContainers=INITS)
    pod = Pod(pods.read(manifest))
    pod.containers["first"].reason = "CreateContainerConfigError"
    status = status_of(manifest, pod)
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert conditions(status)["Initialized"] == ("False", "ContainersNotInitialized")


def test_the_end_of_a_process_is_shown() -> None:
    manifest = stored()
    pod = started(manifest, Phase.FAILED)
    run = ContainerRun().started(FIRST).ended(3, LATER, "no tape")
    status = status_of(manifest, pod, LATER, runs={"main": run})
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "no tape")
    assert (ended["startedAt"], ended["finishedAt"]) == (FIRST, LATER)
    assert conditions(status)["Ready"] == ("False", "PodFailed")


def test_a_process_that_waits_for_its_next_start_shows_how_the_last_run_ended() -> None:
    manifest = stored()
    run = ContainerRun().started(FIRST).ended(1, FIRST).started(LATER).ended(2, LATER)
    waiting = run.waiting("CrashLoopBackOff", "back-off 10s")
    (shown,) = status_of(manifest, started(manifest), runs={"main": waiting})["containerStatuses"]
    assert shown["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    assert shown["lastState"]["terminated"]["exitCode"] == 2
    assert (shown["restartCount"], shown["ready"]) == (1, False)


def test_devices_are_shown_by_resource() -> None:
    health = (DeviceHealth("a/x", "0", Health.HEALTHY), DeviceHealth("b/y", "1", Health.UNHEALTHY))
    manifest = stored()
    status = status_of(manifest, started(manifest), health={"main": health})
    assert status["containerStatuses"][0]["allocatedResourcesStatus"] == [
        {"name": "a/x", "resources": [{"resourceID": "0", "health": "Healthy"}]},
        {"name": "b/y", "resources": [{"resourceID": "1", "health": "Unhealthy"}]},
    ]


def test_a_rejected_pod_has_no_containers() -> None:
    status = pod_status.rejected_status(stored(), "OutOfmock/gpu", "Pod was rejected: no", FIRST)
    assert (status["phase"], status["reason"], status["startTime"]) == ("Failed", "OutOfmock/gpu", FIRST)
    assert "containerStatuses" not in status
    assert conditions(status) == {"PodScheduled": ("True", "")}


@given(
    starts=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    running=st.lists(st.booleans(), min_size=3, max_size=3),
    phase=st.sampled_from(list(Phase)),
    runs=st.dictionaries(st.sampled_from(["first", "beside", "main"]), RUNS),
)
def test_every_container_is_in_exactly_one_state(
    starts: list[int], running: list[bool], phase: Phase, runs: dict[str, ContainerRun]
) -> None:
    manifest = stored(initContainers=INITS)
    pod = Pod(pods.read(manifest), phase)
    for container, count, is_running in zip(pod.containers.values(), starts, running, strict=True):
        container.starts, container.running = count, is_running and count > 0
        container.reason = "" if count else container.reason
    status = status_of(manifest, pod, runs=runs)
    again = status_of({**manifest, "status": status}, pod, LATER, runs=runs)
    for container in [*status["containerStatuses"], *status["initContainerStatuses"]]:
        assert len(container["state"]) == 1
        assert container["started"] == ("running" in container["state"])
    assert again == status


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("", ("False", 'corresponding condition of pod readiness gate "example.com/up" does not exist.')),
        ("False", ("False", 'the status of pod readiness gate "example.com/up" is not "True", but False')),
        ("True", ("True", "")),
    ],
)
def test_readiness_gates_keep_a_pod_from_being_ready(condition: str, expected: tuple[str, str]) -> None:
    manifest = stored(readinessGates=[{"conditionType": "example.com/up"}])
    if condition:
        manifest["status"] = {"conditions": [{"type": "example.com/up", "status": condition}]}
    shown = {entry["type"]: entry for entry in status_of(manifest, started(manifest))["conditions"]}
    assert (shown["Ready"]["status"], shown["Ready"].get("message", "")) == expected
    assert shown["ContainersReady"]["status"] == "True"
