"""Deployments, ReplicaSets, DaemonSets, Jobs and CronJobs over a store, with a clock that the test advances.

The test is the scheduler and the kubelet: it binds pods and says how they are.
"""

from datetime import UTC, datetime, timedelta

from tests.cluster.pods_and_nodes import node_object

from plugwright.apiserver.kinds import (
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    Kind,
)
from plugwright.apiserver.registry import DeleteOptions, ResourcePath, Writer
from plugwright.apiserver.store import Object, Store
from plugwright.cluster.controllers.controller_manager import ControllerManager
from plugwright.cluster.events import ClusterClient

LABELS = {"app": "web"}


def template(policy: str = "Always", image: str = "demo:1", **spec: object) -> Object:
    containers = [{"name": "main", "image": image}]
    return {"metadata": {"labels": LABELS}, "spec": {"restartPolicy": policy, "containers": containers, **spec}}


class World:
    def __init__(self) -> None:
        self.time = datetime(2026, 11, 15, 12, tzinfo=UTC)
        self.store = Store()
        self.writer = Writer(self.store, self.now)
        self.manager = ControllerManager(ClusterClient(self.store, self.writer, self.now))
        self.writer.create(ResourcePath(NAMESPACES, "", "default"), {"metadata": {"name": "default"}}, "test")
        self.manager.resync()

    def now(self) -> datetime:
        return self.time

    async def settle(self, seconds: float = 0) -> None:
        """Lets the controllers work until they have nothing to do."""
        self.time += timedelta(seconds=seconds)
        revision = -1
        while revision != self.store.revision:
            revision = self.store.revision
            await self.manager.step(0)

    def create(self, kind: Kind, name: str, **spec: object) -> None:
        self.writer.create(ResourcePath(kind, "default", name), {"metadata": {"name": name}, "spec": spec}, "test")

    def change(self, kind: Kind, name: str, **spec: object) -> None:
        def changed(content: Object) -> Object:
            return {**content, "spec": {**content["spec"], **spec}}

        self.writer.change(ResourcePath(kind, "default", name), changed, "test")

    def delete(self, kind: Kind, name: str) -> None:
        namespace = "default" if kind.namespaced else ""
        self.writer.delete(ResourcePath(kind, namespace, name), DeleteOptions())

    def node(self, name: str, **spec: object) -> None:
        self.writer.create(ResourcePath(NODES, "", name), node_object(name, None, **spec), "kubelet")

    def pods(self) -> list[Object]:
        return [pod for pod in self.store.objects(PODS.qualified) if not pod["metadata"].get("deletionTimestamp")]

    def images(self) -> list[str]:
        return [pod["spec"]["containers"][0]["image"] for pod in self.pods()]

    def status(self, kind: Kind, name: str) -> Object:
        return dict(self.store.require(ResourcePath(kind, "default", name).key).get("status") or {})

    def holds(self, kind: Kind, name: str, condition: str) -> str:
        """The reason of a condition that is true, else nothing."""
        conditions = self.status(kind, name).get("conditions") or ()
        found = [one for one in conditions if one["type"] == condition and one["status"] == "True"]
        return str(found[0]["reason"]) if found else ""

    def report(self, pod: Object, phase: str) -> None:
        """As its kubelet: running is ready."""
        ready = {"type": "Ready", "status": str(phase == "Running"), "lastTransitionTime": self.stamp()}
        path = ResourcePath(PODS, "default", pod["metadata"]["name"], "status")
        status = {"phase": phase, "conditions": [ready]}
        self.writer.change(path, lambda stored: {**stored, "status": {**stored["status"], **status}}, "kubelet")

    def stamp(self) -> str:
        return self.time.strftime("%Y-%m-%dT%H:%M:%SZ")

    async def run_all(self, phase: str = "Running") -> None:
        """Until there is no pod that has another phase."""
        await self.settle()
        while waiting := [pod for pod in self.pods() if pod["status"]["phase"] not in (phase, "Succeeded", "Failed")]:
            for pod in waiting:
                self.report(pod, phase)
            await self.settle()


class TestDeployment:
    async def world(self, **spec: object) -> World:
        world = World()
        world.create(DEPLOYMENTS, "web", selector={"matchLabels": LABELS}, template=template(), **spec)
        await world.run_all()
        return world

    async def test_makes_a_replica_set_and_its_pods(self) -> None:
        world = await self.world(replicas=3)
        assert len(world.pods()) == 3
        status = world.status(DEPLOYMENTS, "web")
        assert (status["replicas"], status["updatedReplicas"], status["availableReplicas"]) == (3, 3, 3)
        assert world.holds(DEPLOYMENTS, "web", "Progressing") == "NewReplicaSetAvailable"
        assert world.holds(DEPLOYMENTS, "web", "Available") == "MinimumReplicasAvailable"

    async def test_replaces_a_deleted_pod_by_one(self) -> None:
        world = await self.world(replicas=2)
        world.delete(PODS, world.pods()[0]["metadata"]["name"])
        await world.run_all()
        assert len(world.pods()) == 2

    async def test_scales_down_to_none(self) -> None:
        world = await self.world(replicas=3)
        world.change(DEPLOYMENTS, "web", replicas=0)
        await world.run_all()
        assert world.pods() == []

    async def test_a_new_template_is_rolled_out_within_its_limits(self) -> None:
        world = await self.world(replicas=4)
        world.change(DEPLOYMENTS, "web", template=template(image="demo:2"))
        await world.settle()
        assert len(world.pods()) <= 5  # maxSurge: 25%
        assert world.images().count("demo:1") >= 3  # maxUnavailable: 25%
        await world.run_all()
        assert world.images() == ["demo:2"] * 4

    async def test_pods_that_never_become_ready_do_not_replace_those_that_are(self) -> None:
        world = await self.world(replicas=4)
        world.change(DEPLOYMENTS, "web", template=template(image="broken"))
        for _ in range(3):
            await world.settle(1)
        assert world.images().count("demo:1") == 3
        await world.settle(700)
        conditions = {one["type"]: one for one in world.status(DEPLOYMENTS, "web")["conditions"]}
        assert conditions["Progressing"]["reason"] == "ProgressDeadlineExceeded"

    async def test_recreate_ends_the_old_pods_first(self) -> None:
        world = await self.world(replicas=2, strategy={"type": "Recreate"})
        world.change(DEPLOYMENTS, "web", template=template(image="demo:2"))
        seen: set[frozenset[str]] = set()
        for _ in range(4):
            await world.manager.step(0)
            seen.add(frozenset(world.images()))
        await world.run_all()
        assert frozenset({"demo:1", "demo:2"}) not in seen
        assert world.images() == ["demo:2"] * 2

    async def test_a_template_that_comes_back_takes_its_replica_set_again(self) -> None:
        world = await self.world(replicas=1)
        for image in ("demo:2", "demo:1"):
            world.change(DEPLOYMENTS, "web", template=template(image=image))
            await world.run_all()
        assert len(world.store.objects(REPLICA_SETS.qualified)) == 2
        deployment = world.store.require(ResourcePath(DEPLOYMENTS, "default", "web").key)
        assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"

    async def test_old_replica_sets_beyond_the_history_are_deleted(self) -> None:
        world = await self.world(replicas=1, revisionHistoryLimit=1)
        for number in range(2, 6):
            world.change(DEPLOYMENTS, "web", template=template(image=f"demo:{number}"))
            await world.run_all()
        assert len(world.store.objects(REPLICA_SETS.qualified)) == 2

    async def test_a_paused_one_is_scaled_and_not_updated(self) -> None:
        world = await self.world(replicas=1)
        world.change(DEPLOYMENTS, "web", paused=True, replicas=2, template=template(image="demo:2"))
        await world.run_all()
        assert world.images() == ["demo:1"]
        world.change(DEPLOYMENTS, "web", paused=False)
        await world.run_all()
        assert world.images() == ["demo:2"] * 2

    async def test_everything_goes_with_it(self) -> None:
        world = await self.world(replicas=2)
        world.delete(DEPLOYMENTS, "web")
        await world.settle()
        assert world.pods() == []
        assert not world.store.objects(REPLICA_SETS.qualified)

    async def test_min_ready_seconds_delay_availability(self) -> None:
        world = await self.world(replicas=1, minReadySeconds=30)
        assert "availableReplicas" not in world.status(DEPLOYMENTS, "web")
        await world.settle(31)
        assert world.status(DEPLOYMENTS, "web")["availableReplicas"] == 1


async def test_pods_that_are_refused_are_reported_and_created_later() -> None:
    world = World()
    spec = template(serviceAccountName="missing")
    world.create(REPLICA_SETS, "web", replicas=1, selector={"matchLabels": LABELS}, template=spec)
    await world.settle()
    assert world.holds(REPLICA_SETS, "web", "ReplicaFailure") == "FailedCreate"
    assert any(
        'serviceaccount "missing" not found' in event["message"] for event in world.store.objects(EVENTS.qualified)
    )
    account = {"metadata": {"name": "missing"}}
    world.writer.create(ResourcePath(SERVICE_ACCOUNTS, "default", "missing"), account, "test")
    await world.settle(11)
    assert len(world.pods()) == 1


class TestDaemonSet:
    async def world(self, *nodes: str, **spec: object) -> World:
        world = World()
        for node in nodes:
            world.node(node)
        world.create(DAEMON_SETS, "agent", selector={"matchLabels": LABELS}, template=template(), **spec)
        await self.bound(world)
        return world

    async def bound(self, world: World) -> None:
        """Every pod is bound to the one node that it may go to, and runs there."""
        await world.settle()
        while unbound := [pod for pod in world.pods() if not pod["spec"].get("nodeName")]:
            for pod in unbound:
                terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                node = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
                world.writer.bind(ResourcePath(PODS, "default", pod["metadata"]["name"]), node)
            await world.run_all()
            self.end(world)
            await world.settle()

    def end(self, world: World) -> None:
        """The kubelets end pods that are being deleted."""
        for pod in world.store.objects(PODS.qualified):
            if pod["metadata"].get("deletionTimestamp"):
                path = ResourcePath(PODS, "default", pod["metadata"]["name"])
                world.writer.delete(path, DeleteOptions(grace=0))

    def nodes(self, world: World) -> list[str]:
        return sorted(pod["spec"]["nodeName"] for pod in world.pods())

    async def test_puts_a_pod_on_every_node(self) -> None:
        world = await self.world("a", "b")
        world.node("c")
        await self.bound(world)
        assert self.nodes(world) == ["a", "b", "c"]
        status = world.status(DAEMON_SETS, "agent")
        assert (status["desiredNumberScheduled"], status["numberReady"], status["numberAvailable"]) == (3, 3, 3)

    async def test_leaves_out_nodes_that_its_pods_do_not_tolerate(self) -> None:
        world = World()
        world.node("a")
        world.node("tainted", taints=[{"key": "pool", "value": "x", "effect": "NoSchedule"}])
        world.node("cordoned", unschedulable=True)
        world.create(DAEMON_SETS, "agent", selector={"matchLabels": LABELS}, template=template())
        await self.bound(world)
        assert self.nodes(world) == ["a", "cordoned"]

    async def test_a_new_template_replaces_one_pod_after_the_other(self) -> None:
        world = await self.world("a", "b", "c")
        world.change(DAEMON_SETS, "agent", template=template(image="demo:2"))
        await world.settle()
        assert world.images() == ["demo:1"] * 2
        for _ in range(4):
            self.end(world)
            await self.bound(world)
        assert world.images() == ["demo:2"] * 3
        assert world.status(DAEMON_SETS, "agent")["updatedNumberScheduled"] == 3

    async def test_on_delete_waits_for_the_user(self) -> None:
        world = await self.world("a", updateStrategy={"type": "OnDelete"})
        world.change(DAEMON_SETS, "agent", template=template(image="demo:2"))
        await world.settle()
        assert world.images() == ["demo:1"]

    async def test_a_failed_pod_is_replaced_later_each_time(self) -> None:
        world = await self.world("a")
        for seconds in (1, 2):
            world.report(world.pods()[0], "Failed")
            await world.settle()
            self.end(world)
            await world.settle()
            assert world.pods() == []
            await world.settle(seconds)
            await self.bound(world)
            assert self.nodes(world) == ["a"]


class TestJob:
    def world(self, **spec: object) -> World:
        world = World()
        world.create(JOBS, "sum", **{"template": template("Never"), **spec})
        return world

    async def test_is_complete_after_its_completions(self) -> None:
        world = self.world(completions=3, parallelism=2)
        await world.settle()
        assert len(world.pods()) == 2
        await world.run_all("Succeeded")
        assert world.holds(JOBS, "sum", "Complete") == "CompletionsReached"
        status = world.status(JOBS, "sum")
        assert (status["succeeded"], len(world.pods())) == (3, 3)
        assert status["completionTime"]

    async def test_fails_after_its_back_off_limit(self) -> None:
        world = self.world(backoffLimit=1)
        await world.run_all("Failed")
        assert len(world.pods()) == 1  # the second waits for ten seconds
        await world.settle(11)
        await world.run_all("Failed")
        assert world.holds(JOBS, "sum", "Failed") == "BackoffLimitExceeded"
        assert world.status(JOBS, "sum")["failed"] == 2

    async def test_fails_at_its_deadline(self) -> None:
        world = self.world(activeDeadlineSeconds=60)
        await world.run_all()
        await world.settle(61)
        assert world.holds(JOBS, "sum", "Failed") == "DeadlineExceeded"
        assert world.pods() == []

    async def test_every_index_succeeds_once(self) -> None:
        world = self.world(completions=3, parallelism=3, completionMode="Indexed")
        await world.settle()
        variables = [pod["spec"]["containers"][0]["env"] for pod in world.pods()]
        assert sorted(one[0]["value"] for one in variables) == ["0", "1", "2"]
        await world.run_all("Succeeded")
        assert world.status(JOBS, "sum")["completedIndexes"] == "0-2"

    async def test_a_suspended_one_has_no_pods_until_it_is_resumed(self) -> None:
        world = self.world(suspend=True)
        await world.settle()
        assert (world.pods(), world.holds(JOBS, "sum", "Suspended")) == ([], "JobSuspended")
        world.change(JOBS, "sum", suspend=False)
        await world.run_all("Succeeded")
        assert world.holds(JOBS, "sum", "Complete")

    async def test_goes_when_its_time_to_live_is_over(self) -> None:
        world = self.world(ttlSecondsAfterFinished=30)
        await world.run_all("Succeeded")
        await world.settle(29)
        assert len(world.store.objects(JOBS.qualified)) == 1
        await world.settle(2)
        assert not world.store.objects(JOBS.qualified)
        assert world.pods() == []


class TestCronJob:
    def world(self, **spec: object) -> World:
        world = World()
        job = {"spec": {"template": template("Never")}}
        world.create(CRON_JOBS, "tick", **{"schedule": "*/5 * * * *", "jobTemplate": job, **spec})
        return world

    def jobs(self, world: World) -> list[str]:
        return [job["metadata"]["name"] for job in world.store.objects(JOBS.qualified)]

    async def test_starts_a_job_at_its_time(self) -> None:
        world = self.world()
        await world.settle(299)
        assert self.jobs(world) == []
        await world.settle(1)
        minutes = int(world.time.timestamp()) // 60
        assert self.jobs(world) == [f"tick-{minutes}"]
        assert world.status(CRON_JOBS, "tick")["lastScheduleTime"] == "2026-11-15T12:05:00Z"
        assert len(world.status(CRON_JOBS, "tick")["active"]) == 1

    async def test_of_missed_times_the_latest_is_made_up_for(self) -> None:
        world = self.world()
        await world.settle(3600 + 30)
        assert len(self.jobs(world)) == 1
        assert world.status(CRON_JOBS, "tick")["lastScheduleTime"] == "2026-11-15T13:00:00Z"

    async def test_a_time_missed_by_more_than_the_deadline_is_left_out(self) -> None:
        world = self.world(startingDeadlineSeconds=10)
        await world.settle(330)
        assert self.jobs(world) == []

    async def test_forbid_waits_for_the_job_before(self) -> None:
        world = self.world(concurrencyPolicy="Forbid")
        await world.settle(300)
        await world.settle(300)
        assert len(self.jobs(world)) == 1

    async def test_replace_ends_the_job_before(self) -> None:
        world = self.world(concurrencyPolicy="Replace")
        await world.settle(300)
        before = self.jobs(world)
        await world.settle(300)
        assert len(self.jobs(world)) == 1
        assert self.jobs(world) != before

    async def test_a_suspended_one_starts_nothing(self) -> None:
        world = self.world(suspend=True)
        await world.settle(900)
        assert self.jobs(world) == []

    async def test_keeps_as_many_finished_jobs_as_it_wants(self) -> None:
        world = self.world(successfulJobsHistoryLimit=2)
        for _ in range(4):
            await world.settle(300)
            await world.run_all("Succeeded")
        assert len(self.jobs(world)) == 2
