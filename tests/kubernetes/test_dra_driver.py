"""Mock devices served by claims: the real scheduler chooses, the real kubelet prepares, containerd starts."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest
from tests.kubernetes.claims import Claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.findings import Findings
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pod, Pods
from tests.kubernetes.serving import Daemon, Plugins
from tests.kubernetes.waiting import until

Serve = Callable[..., tuple[Daemon, Claims]]
_MODEL = 'device.attributes["{driver}"].?model.orValue("") == "{model}"'


@pytest.fixture
def serve(cluster: Cluster, plugins: Plugins, pods: Pods) -> Iterator[Serve]:
    """Mock devices of one resource by claims, and the class for them."""
    made: list[Claims] = []

    def started(name: str, count: int, extended: str = "", **keys: object) -> tuple[Daemon, Claims]:
        daemon = plugins.run({f"example.com/{name}": {"count": count, "serve": "dra", **keys}})
        claims = Claims(cluster.kubectl, f"{name}.example.com", extended)
        made.append(claims)
        claims.published(count)
        until("registered", lambda: daemon.logged("registered", driver=claims.driver))
        return daemon, claims

    yield started
    cluster.revive()
    pods.end()
    for claims in made:
        claims.end()


@pytest.mark.essential
@pytest.mark.smoke
def test_a_pod_gets_the_device_of_its_claim_and_gives_it_back(serve: Serve) -> None:
    _, claims = serve("tape", 1)
    claims.template("one")
    first = claims.pod("first", "one").runs()
    [(claim, [device])] = claims.allocated().items()
    assert first.devices() == [device]
    until("the claim's status says so", lambda: claims.conditions(claim) == [("Ready", "True", "Prepared")])
    waits = claims.pod("waits", "one")
    until("it waits for a device", lambda: "cannot allocate all claims" in str(waits.read()["status"]))
    first.delete()
    assert waits.runs().devices() == [device]


@pytest.mark.essential
@pytest.mark.smoke
def test_claims_select_by_attribute_and_capacity(serve: Serve) -> None:
    _, claims = serve("chosen", 2, model="Mock-A100", memory="40Gi")
    driver = claims.driver
    big = f'device.capacity["{driver}"].memory.compareTo(quantity("64Gi")) >= 0'
    small = f'device.capacity["{driver}"].memory.compareTo(quantity("40Gi")) >= 0'
    model = _MODEL.format(driver=driver, model="Mock-A100")
    selectors = [{"cel": {"expression": expression}} for expression in (model, small)]
    claims.template("fits", claims.request(selectors=selectors))
    claims.template("too-big", claims.request(selectors=[{"cel": {"expression": big}}]))
    subrequests = [
        {"name": "large", "deviceClassName": driver, "selectors": [{"cel": {"expression": big}}]},
        {"name": "small", "deviceClassName": driver},
    ]
    claims.template("first-that-fits", {"name": "any", "firstAvailable": subrequests})
    assert len(claims.pod("fits", "fits").runs().devices()) == 1
    assert len(claims.pod("first-that-fits", "first-that-fits").runs().devices()) == 1
    waits = claims.pod("too-big", "too-big")
    until("it waits", lambda: "cannot allocate all claims" in str(waits.read()["status"]))


def test_two_claims_in_one_pod_and_two_pods_on_one_claim(serve: Serve) -> None:
    _, claims = serve("shared", 3)
    claims.template("one")
    claims.claim("common")
    claims.pod("two", "one", "one").runs()
    assert sum(map(len, claims.allocated().values())) == 2
    users = [claims.pod(f"user-{number}", claims=["common"]).runs() for number in range(2)]
    assert users[0].devices() == users[1].devices() == claims.allocated()["common"]
    users[0].delete()
    assert users[1].containers()[0][1] == 0
    users[1].delete()
    until("the claim is free", lambda: "common" not in claims.allocated())


@pytest.mark.essential
@pytest.mark.smoke
def test_a_kubelet_restart_wipes_the_slices_and_they_are_back_at_once(
    serve: Serve, cluster: Cluster, findings: Findings
) -> None:
    daemon, claims = serve("wiped", 3)
    claims.template("one")
    stays = claims.pod("stays", "one").runs()
    before, names = (stays.containers(), stays.devices()), {found["metadata"]["uid"] for found in claims.slices()}
    cluster.restart("kubelet")
    until("the kubelet deletes them", lambda: names.isdisjoint(f["metadata"]["uid"] for f in claims.slices()))
    began = time.monotonic()
    claims.published(3)
    findings.notes.append(f"slices back {time.monotonic() - began:.1f} s after a kubelet's wipe was seen")
    until("registered again", lambda: len(daemon.logged("registered", driver=claims.driver)) > 1)
    claims.pod("after", "one").runs()
    assert (stays.containers(), stays.devices()) == before


@pytest.mark.essential
@pytest.mark.smoke
def test_a_driver_that_is_killed_comes_back_to_its_claims(serve: Serve, plugins: Plugins) -> None:
    daemon, claims = serve("killed", 2)
    claims.template("one")
    holder = claims.pod("holder", "one").runs()
    before = holder.containers()
    daemon.process.stop(signal.SIGKILL)
    holder.kubectl("delete", "pod", "holder", "--wait=false")
    until("its containers have ended", lambda: not _runs(holder))
    assert holder.read()["metadata"]["deletionTimestamp"], "the kubelet waits for the driver"
    again = plugins.run_again(daemon)
    until("it is gone", lambda: holder.kubectl.get("pod", "holder") is None, limit=60)
    until("registered", lambda: again.logged("registered", driver=claims.driver))
    assert len(claims.pod("after", "one").runs().devices()) == 1
    assert before[0][1] == 0


@pytest.mark.essential
def test_a_claim_in_progress_is_prepared_before_its_driver_stops(
    cluster: Cluster, plugins: Plugins, pods: Pods, findings: Findings
) -> None:
    """No driver is left to be asked again: the pod runs only if the one call was answered."""
    driver = plugins.script("slow_claim", "example.com/slow", "4")
    claims = Claims(cluster.kubectl, "slow.example.com")
    try:
        claims.published(1)
        until("registered", lambda: driver.lines("registered"))
        claims.template("one")
        pod = claims.pod("slow", "one")
        until("the plugin is called", lambda: driver.lines("allocating"))
        began = time.monotonic()
        assert driver.stop(signal.SIGTERM, limit=10) == 0
        findings.notes.append(f"SIGTERM in a prepare of 4 s: ended after {time.monotonic() - began:.1f} s")
        assert [path.name for path in cluster.kubelet_dir.rglob("*.sock") if "slow.example.com" in str(path)] == []
        pod.runs()
        assert len(driver.lines("allocating")) == 1
    finally:
        plugins.script("slow_claim", "example.com/slow", "0")  # to unprepare it
        pods.end()
        claims.end()


def test_after_a_reboot_a_pod_has_its_device_again(serve: Serve, cluster: Cluster, plugins: Plugins) -> None:
    daemon, claims = serve("rebooted", 2)
    claims.template("one")
    pod = claims.pod("stays", "one", restartPolicy="Always").runs()
    devices, restarts = pod.devices(), pod.containers()[0][1]
    daemon.process.stop(signal.SIGKILL)
    with cluster.rebooting():
        plugins.run_again(daemon)
    until("its container is started again", lambda: pod.containers()[0][1] > restarts, limit=120, last=pod.read)
    assert pod.runs().devices() == devices


@pytest.mark.essential
def test_a_device_that_fails_is_tainted_and_taken_back(serve: Serve, findings: Findings) -> None:
    daemon, claims = serve("failing", 2)
    [first, second] = claims.published(2)
    claims.template("one")
    began = time.monotonic()
    daemon.ask("mock", "fail", first)
    until("it is tainted", lambda: claims.taints() == {first: [("plugwright.dev/unhealthy", "NoSchedule")]})
    tainted = time.monotonic() - began
    assert claims.pod("gets-another", "one").runs().devices() == [second]
    began = time.monotonic()
    daemon.ask("mock", "recover", first)
    until("the taint is gone", lambda: not claims.taints())
    findings.notes.append(
        f"tainted after {tainted:.1f} s, back after {time.monotonic() - began:.1f} s, with kubectl's own time"
    )
    assert claims.pod("back", "one").runs().devices() == [first]


def test_a_taint_evicts_where_the_operator_asks_for_it(serve: Serve) -> None:
    taints = {"effect": "NoExecute", "grace": 1, "budget": 1}
    daemon, claims = serve("evicted", 3, serve={"api": "dra", "taints": taints})
    claims.template("one")
    holders = [claims.pod(f"holder-{number}", "one").runs() for number in range(2)]
    held = [holder.devices()[0] for holder in holders]
    for device in held:
        daemon.ask("mock", "fail", device)
    until("one of them is evicted", lambda: sum(_is_gone(holder) for holder in holders) == 1)
    effects = {effect for taints in claims.taints().values() for _, effect in taints}
    assert effects == {"NoSchedule", "NoExecute"}, "one device an hour is the budget"
    assert sum(_is_gone(holder) for holder in holders) == 1


def test_health_of_a_claims_device_is_in_the_pods_status(serve: Serve) -> None:
    daemon, claims = serve("ailing", 1)
    claims.template("one")
    pod = claims.pod("holder", "one").runs()
    [device] = pod.devices()
    until("it is Healthy", lambda: "Healthy" in pod.health().values(), last=pod.health)
    daemon.ask("mock", "fail", device)
    until("it is Unhealthy", lambda: "Unhealthy" in pod.health().values(), last=pod.health)


def test_monitoring_sees_devices_in_use(serve: Serve, cluster: Cluster) -> None:
    _, claims = serve("seen", 2)
    cluster.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access=true", "--overwrite")
    try:
        claims.template("one")
        holder = claims.pod("holder", "one").runs()
        claims.template("all", claims.request(allocationMode="All", adminAccess=True))
        assert set(holder.devices()) <= set(claims.pod("monitor", "all").runs().devices())
    finally:
        cluster.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access-")


def test_a_name_that_no_plugin_serves_is_served_by_claims(serve: Serve, pods: Pods) -> None:
    _, claims = serve("plain", 2, extended="example.com/plain")
    pod = pods.create("plain", {"example.com/plain": 2}).runs()
    assert pod.devices() == sorted(claims.devices())


def test_a_claim_takes_about_as_long_as_a_device_plugin(
    serve: Serve, plugins: Plugins, node: Node, pods: Pods, findings: Findings
) -> None:
    _, claims = serve("timed", 1)
    plugins.run({"mock/timed": {"count": 1}})
    node.shows("mock/timed", capacity=1, allocatable=1)
    claims.template("one")
    times: dict[str, list[float]] = {"claim": [], "plugin": []}
    for number in range(5):
        for kind, measured in times.items():
            began = time.monotonic()
            name = f"{kind}-{number}"
            pod = claims.pod(name, "one") if kind == "claim" else pods.create(name, {"mock/timed": 1})
            pod.runs()
            measured.append(time.monotonic() - began)
            pod.delete()
    claim, plugin = (sorted(measured)[2] for measured in times.values())
    findings.notes.append(
        f"created → running: {claim:.2f} s with a claim, {plugin:.2f} s with a plugin: ratio {claim / plugin:.2f}"
    )


def _runs(pod: Pod) -> bool:
    statuses = pod.read()["status"].get("containerStatuses", [])
    return any("running" in status["state"] for status in statuses)


def _is_gone(pod: Pod) -> bool:
    found = pod.kubectl.get("pod", pod.name)
    return found is None or "deletionTimestamp" in found["metadata"]
