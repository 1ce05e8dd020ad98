"""The defects that rules for DRA drivers name have the effect in a real Kubernetes that the rules claim.

Each is a mutant of the small driver of the rules' own tests. A container gets its devices as nodes: /dev/part-0, …
"""

import os
import time
from collections.abc import Callable, Iterator

import pytest
from tests.kubernetes.claims import Claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.enclosure import Process
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.pods import Pod, Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

LONG = pytest.mark.skipif(
    os.environ.get("PLUGWRIGHT_KUBERNETES_LONG") != "1", reason="PLUGWRIGHT_KUBERNETES_LONG=1 plays it"
)
Serve = Callable[[str], tuple[Process, Claims]]
_DEVICES = "ls /dev | grep -E '^(part|half|shared)' || true"


@pytest.fixture
def serve(cluster: Cluster, plugins: Plugins, pods: Pods) -> Iterator[Serve]:
    """A mutant under a name of its own, and the class for its devices."""
    made: list[Claims] = []

    def started(mutant: str) -> tuple[Process, Claims]:
        claims = Claims(cluster.kubectl, f"{mutant}.example.com")
        made.append(claims)
        return plugins.driver(claims.driver, mutant), claims

    yield started
    pods.end()
    for claims in made:
        claims.end()


def published(process: Process, claims: Claims) -> None:
    until("it is registered", lambda: process.lines("registered"))
    until("it has slices", claims.slices)


def events(pod: Pod, reason: str) -> str:
    """The texts of the pod's events with this reason."""
    found = pod.kubectl.every("events", f"--field-selector=involvedObject.name={pod.name},reason={reason}")
    return " ".join(str(event["message"]) for event in found)


def not_prepared(pod: Pod) -> str:
    return until("it is not prepared", lambda: events(pod, "FailedPrepareDynamicResources"), last=pod.read)


@pytest.mark.essential
def test_a_slice_that_is_not_valid_is_refused_whole(serve: Serve) -> None:
    refused = {
        "devices-and-counters": "sharedCounters",  # SLC-01
        "name-with-underscore": "RFC 1123",  # SLC-02
        "version-with-letter": "semver",  # SLC-03
        "too-many-devices": "Too many",  # SLC-04
    }
    drivers = {mutant: serve(mutant) for mutant in refused}
    for mutant, words in refused.items():
        process, claims = drivers[mutant]
        until(f"{mutant} is refused", lambda: process.lines(words), last=process.lines)  # noqa: B023
        assert not [found for found in claims.slices() if found["spec"].get("devices")]


@pytest.mark.essential
def test_a_pool_that_is_not_right_is_not_used(serve: Serve) -> None:
    unused = {"counts-wrong": "SLC-05", "device-twice": "SLC-07", "no-such-counter": "SLC-08"}
    pods = {}
    for mutant in unused:
        process, claims = serve(mutant)
        published(process, claims)
        claims.claim(f"rule-{mutant}")
        pods[mutant] = claims.pod(f"rule-{mutant}", claims=[f"rule-{mutant}"])
    for mutant, pod in pods.items():
        words = until(f"{mutant} waits", lambda: events(pod, "FailedScheduling"))  # noqa: B023
        assert ("cannot allocate all claims" if mutant == "counts-wrong" else "invalid") in words


@pytest.mark.essential
@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        ("refuses-all", "this driver is not ready to prepare anything"),  # PRP-01, PRP-17
        ("answers-first-claim", "skipped 1 ResourceClaims"),  # PRP-02
    ],
)
def test_a_pod_waits_with_the_words_of_the_rule(serve: Serve, mutant: str, words: str) -> None:
    process, claims = serve(mutant)
    published(process, claims)
    claims.template("one")
    pod = claims.pod(f"rule-{mutant}", "one", "one")
    assert words in not_prepared(pod)


def test_an_entry_for_another_claim_keeps_the_pod_from_starting(serve: Serve) -> None:  # PRP-03
    process, claims = serve("answers-all-claims")
    published(process, claims)
    claims.template("one")
    claims.pod("rule-first", "one").runs()
    assert "unknown claim UID" in not_prepared(claims.pod("rule-second", "one"))


@pytest.mark.essential
def test_a_container_starts_without_the_device_of_a_subrequest(serve: Serve) -> None:  # PRP-05
    process, claims = serve("names-subrequest")
    published(process, claims)
    small = {"name": "small", "deviceClassName": claims.driver}
    claims.template("any", {"name": "parts", "firstAvailable": [small]})
    uses = {"unnamed": {"name": "t0"}, "named": {"name": "t0", "request": "parts"}}
    containers = [
        {
            "name": name,
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", f"{_DEVICES}; trap exit TERM; sleep 1000000 & wait"],
            "resources": {"claims": [used]},
        }
        for name, used in uses.items()
    ]
    pod = claims.pod("rule-subrequest", "any", containers=containers).runs()
    written = {name: pod.kubectl("logs", pod.name, "--container", name) for name in uses}
    assert written == {"unnamed": "part-0\n", "named": ""}


@pytest.mark.parametrize("mutant", ["writes-no-spec", pytest.param("missing-node", marks=LONG)])  # CDI-02, CDI-04
def test_a_container_is_not_created(serve: Serve, mutant: str) -> None:
    process, claims = serve(mutant)
    published(process, claims)
    claims.template("one")
    pod = claims.pod(f"rule-{mutant}", "one")

    def waits() -> str:
        statuses = pod.read().get("status", {}).get("containerStatuses", [])
        return next((waiting["reason"] for status in statuses if (waiting := status["state"].get("waiting"))), "")

    assert until("it waits", lambda: "Error" in waits() and waits()) in ("CreateContainerError", "RunContainerError")


@pytest.mark.parametrize("mutant", ["answers-nothing", pytest.param("reads-claim-at-end", marks=LONG)])  # UNP-01, -04
def test_a_pod_does_not_end(serve: Serve, plugins: Plugins, cluster: Cluster, mutant: str) -> None:
    process, claims = serve(mutant)
    published(process, claims)
    claims.template("one")
    pod = claims.pod(f"rule-{mutant}", "one").runs()
    if mutant == "reads-claim-at-end":
        [name] = claims.allocated()
        patch = '{"metadata":{"finalizers":null}}'
        cluster.kubectl("delete", "resourceclaim", name, "--wait=false")
        cluster.kubectl("patch", "resourceclaim", name, "--type=merge", f"--patch={patch}")
    cluster.kubectl("delete", "pod", pod.name, "--wait=false")
    until("the kubelet asks again", lambda: len(process.lines("to unprepare")) > 1, last=process.lines)
    assert pod.read()["metadata"]["deletionTimestamp"]
    process.stop()
    plugins.driver(claims.driver)
    until("it is gone", lambda: cluster.kubectl.get("pod", pod.name) is None)


@LONG
def test_health_that_is_not_repeated_is_unknown(serve: Serve, plugins: Plugins) -> None:  # DRH-04
    process, claims = serve("reports-once")
    published(process, claims)
    claims.template("one")
    pod = claims.pod("rule-lease", "one").runs()
    until("it is Unknown", lambda: "Unknown" in _health(pod), last=pod.health)
    process.stop()
    plugins.driver(claims.driver)
    until("it is Healthy", lambda: "Healthy" in _health(pod), last=pod.health)


@LONG
def test_slices_that_are_published_once_are_gone_after_a_restart(serve: Serve, cluster: Cluster) -> None:  # SLC-12
    process, claims = serve("publishes-once")
    published(process, claims)
    cluster.restart("kubelet")
    until("it is registered again", lambda: len(process.lines("registered")) > 1, last=process.lines)
    until("they are gone", lambda: not claims.slices())


def _health(pod: Pod) -> list[str]:
    """The kubelet looks at health when it writes the pod's status: a changed pod makes it do so."""
    pod.kubectl("annotate", "pod", pod.name, f"looked-at={time.monotonic_ns()}", "--overwrite")
    return list(pod.health().values())
