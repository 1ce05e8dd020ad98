"""A pod's status from what the kubelet knows of it: states, times and devices."""

from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.pods_and_nodes import pod_object

from plugwright.cluster import pod_status
from plugwright.cluster.pod_status import Facts
from plugwright.cluster.store import Object
from plugwright.kubelet import Phase, Pod, pods
from plugwright.kubelet.devicemanager.manager import DeviceHealth
from plugwright.model import Health

FIRST, LATER = "2026-11-15T12:00:00Z", "2026-11-15T12:05:00Z"
INITS = [{"name": "first", "image": "b:1"}, {"name": "beside", "image": "b:1", "restartPolicy": "Always"}]


def stored(**spec: object) -> Object:
    pod = pod_object("p", {"mock/gpu": "1"}, **spec)
    metadata = {**pod["metadata"], "namespace": "default", "uid": "u", "generation": 1}
    scheduled = {"type": "PodScheduled", "status": "True"}
    return {**pod, "metadata": metadata, "status": {"qosClass": "BestEffort", "conditions": [scheduled]}}


def started(found: Object, phase: Phase = Phase.RUNNING) -> Pod:
    pod = Pod(pods.read(found), phase)
    for container in pod.containers.values():
        container.starts, container.reason = 1, ""
        container.running = container.spec.kind != "init"
    return pod


def shown(found: Object, pod: Pod, now: str = FIRST, **more: object) -> Object:
    return pod_status.status(found, pod, Facts(now, "172.18.0.2", "10.244.0.2", **more))  # type: ignore[arg-type]


def conditions(status: Object) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("reason", "")) for each in status["conditions"]}


def test_times_stay_when_the_status_is_made_again() -> None:
    found = stored(initContainers=INITS)
    pod = started(found)
    status = shown(found, pod)
    assert shown({**found, "status": status}, pod, LATER) == status


def test_a_container_that_was_started_again_says_how_the_last_one_ended() -> None:
    found = stored()
    pod = started(found)
    status = shown(found, pod)
    pod.containers["main"].starts = 2
    again = shown({**found, "status": status}, pod, LATER)["containerStatuses"][0]
    assert again["restartCount"] == 1
    assert again["state"] == {"running": {"startedAt": LATER}}
    before = status["containerStatuses"][0]["containerID"]
    assert again["lastState"]["terminated"]["containerID"] == before != again["containerID"]
    assert again["lastState"]["terminated"]["startedAt"] == FIRST


def test_a_container_that_waits_keeps_the_pod_from_being_ready() -> None:
    found = stored()
    pod = Pod(pods.read(found))
    pod.containers["main"].reason, pod.containers["main"].message = "CreateContainerConfigError", "no such device"
    status = shown(found, pod)
    assert status["phase"] == "Pending"
    assert status["containerStatuses"][0]["state"] == {
        "waiting": {"reason": "CreateContainerConfigError", "message": "no such device"}
    }
    assert conditions(status)["Ready"] == ("False", "ContainersNotReady")
    assert "containerID" not in status["containerStatuses"][0]


def test_containers_wait_for_an_init_container_that_cannot_start() -> None:
    found = stored(initContainers=INITS)
    pod = Pod(pods.read(found))
    pod.containers["first"].reason = "CreateContainerConfigError"
    status = shown(found, pod)
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert conditions(status)["Initialized"] == ("False", "ContainersNotInitialized")


def test_exit_codes_are_shown() -> None:
    found = stored()
    pod = started(found)
    running = shown(found, pod)
    pod.phase = Phase.FAILED
    status = shown({**found, "status": running}, pod, LATER, exits={"main": 3})
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["startedAt"], ended["finishedAt"]) == (3, "Error", FIRST, LATER)
    assert conditions(status)["Ready"] == ("False", "PodFailed")


def test_devices_are_shown_by_resource() -> None:
    health = (DeviceHealth("a/x", "0", Health.HEALTHY), DeviceHealth("b/y", "1", Health.UNHEALTHY))
    found = stored()
    status = shown(found, started(found), health={"main": health})
    assert status["containerStatuses"][0]["allocatedResourcesStatus"] == [
        {"name": "a/x", "resources": [{"resourceID": "0", "health": "Healthy"}]},
        {"name": "b/y", "resources": [{"resourceID": "1", "health": "Unhealthy"}]},
    ]


def test_a_refused_pod_has_no_containers() -> None:
    status = pod_status.refused(stored(), "OutOfmock/gpu", "Pod was rejected: no", FIRST)
    assert (status["phase"], status["reason"], status["startTime"]) == ("Failed", "OutOfmock/gpu", FIRST)
    assert "containerStatuses" not in status
    assert conditions(status) == {"PodScheduled": ("True", "")}


@given(
    starts=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    running=st.lists(st.booleans(), min_size=3, max_size=3),
    phase=st.sampled_from(list(Phase)),
    exits=st.dictionaries(st.sampled_from(["first", "beside", "main"]), st.integers(0, 255)),
)
def test_every_container_is_in_exactly_one_state(
    starts: list[int], running: list[bool], phase: Phase, exits: dict[str, int]
) -> None:
    found = stored(initContainers=INITS)
    pod = Pod(pods.read(found), phase)
    for container, count, is_running in zip(pod.containers.values(), starts, running, strict=True):
        container.starts, container.running = count, is_running and count > 0
        container.reason = "" if count else container.reason
    status = shown(found, pod, exits=exits)
    again = shown({**found, "status": status}, pod, LATER, exits=exits)
    for each in [*status["containerStatuses"], *status["initContainerStatuses"]]:
        assert len(each["state"]) == 1
        assert each["started"] == ("running" in each["state"])
    assert again == status
