"""A session with one of the official Python clients: `python python_client.py MODULE KUBECONFIG NAMESPACE`.

MODULE is `kubernetes`, `kubernetes.aio` or `kubernetes_asyncio`: the same calls, some of them awaited. It prints one
line of JSON for each step, with what was seen, and ends with 1 if a step failed. It runs in an environment of its own,
with that client alone.
"""

import ast
import asyncio
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

NAMESPACE = sys.argv[3]  # made and removed by the session
MERGE, STRATEGIC, JSON, APPLY = (
    f"application/{kind}"
    for kind in ("merge-patch+json", "strategic-merge-patch+json", "json-patch+json", "apply-patch+yaml")
)
SPOKEN = ("sh", "-c", "for word in one two three; do echo $word; done")
Step = Callable[["Session"], Awaitable[Any]]
STEPS: list[Step] = []


def step(function: Step) -> Step:
    STEPS.append(function)
    return function


async def done(result: Any) -> Any:
    """What a call returns, in either kind of client."""
    return await result if inspect.isawaitable(result) else result


async def events(stream: Any) -> AsyncIterator[Any]:
    """What a watch yields, in either kind of client."""
    if hasattr(stream, "__aiter__"):
        async for event in stream:
            yield event
    else:
        for event in stream:
            yield event


class Session:
    def __init__(self, module: str, api_client: Any) -> None:
        self.module = module
        self.client = importlib.import_module(f"{module}.client")
        self.watch = importlib.import_module(f"{module}.watch").Watch
        self.dynamic = importlib.import_module(f"{module}.dynamic")
        self.api_client = api_client
        self.core = self.client.CoreV1Api(api_client)

    async def resource(self, api_version: str, kind: str) -> Any:
        client = await done(self.dynamic.DynamicClient(self.api_client))
        return await done(client.resources.get(api_version=api_version, kind=kind))

    async def refusal(self, call: Callable[[], Any]) -> list[Any]:
        """The code and the reason of an exception that a call raises."""
        try:
            await done(call())
        except self.client.ApiException as error:
            return [error.status, json.loads(error.body)["reason"]]
        raise AssertionError("not refused")

    async def watched(self, call: Any, *arguments: str, until: list[str] | None, **options: Any) -> list[list[str]]:
        """Types and names of the events up to and with one."""
        seen: list[list[str]] = []
        watch = self.watch()
        async for event in events(watch.stream(call, *arguments, **options)):
            seen.append([event["type"], event["object"].metadata.name])
            if seen[-1] == until:
                watch.stop()
                break
        return seen

    def pod(self, name: str, command: tuple[str, ...] = (), **spec: Any) -> Any:
        container = self.client.V1Container(name="main", image="demo", command=list(command) or None)
        content = self.client.V1PodSpec(containers=[container], **spec)
        metadata = self.client.V1ObjectMeta(name=name, labels={"app": "python"})
        return self.client.V1Pod(api_version="v1", kind="Pod", metadata=metadata, spec=content)


def text(log: str) -> str:
    """`kubernetes` 36 returns the text of a log as Python writes bytes."""
    return str(ast.literal_eval(log).decode()) if log.startswith("b'") else log


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@step
async def makes_a_namespace(session: "Session") -> Any:
    metadata = session.client.V1ObjectMeta(name=NAMESPACE)
    created = await done(session.core.create_namespace(session.client.V1Namespace(metadata=metadata)))
    await session.watched(
        session.core.list_namespaced_service_account, NAMESPACE, until=["ADDED", "default"], timeout_seconds=30
    )
    return [created.status.phase]


@step
async def reads_the_cluster(session: "Session") -> Any:
    nodes = await done(session.core.list_node())
    versions = await done(session.client.ApisApi(session.api_client).get_api_versions())
    version = await done(session.client.VersionApi(session.api_client).get_code())
    groups = sorted(group.name for group in versions.groups)
    ready = [condition.status for condition in nodes.items[0].status.conditions if condition.type == "Ready"]
    return [nodes.items[0].metadata.name, ready, version.major, "resource.k8s.io" in groups]


@step
async def runs_a_pod_and_watches_it(session: "Session") -> Any:
    created = await done(session.core.create_namespaced_pod(NAMESPACE, session.pod("stays", ("sleep", "600"))))
    phases, watch = [], session.watch()
    options = {"field_selector": "metadata.name=stays", "resource_version": created.metadata.resource_version}
    async for event in events(watch.stream(session.core.list_namespaced_pod, NAMESPACE, timeout_seconds=30, **options)):
        phases.append(event["object"].status.phase)
        if phases[-1] == "Running":
            watch.stop()
            break
    found = await done(session.core.read_namespaced_pod("stays", NAMESPACE))
    return [created.status.phase, phases[-1], found.status.container_statuses[0].ready, found.spec.node_name]


@step
async def replaces_a_pod_and_writes_its_status(session: "Session") -> Any:
    found = await done(session.core.read_namespaced_pod("stays", NAMESPACE))
    found.metadata.annotations = {"note": "replaced"}
    replaced = await done(session.core.replace_namespaced_pod("stays", NAMESPACE, found))
    status = {"status": {"conditions": [{"type": "example.com/python", "status": "True"}]}}
    patched = await done(session.core.patch_namespaced_pod_status("stays", NAMESPACE, status))
    read = await done(session.core.read_namespaced_pod_status("stays", NAMESPACE))
    types = [condition.type for condition in read.status.conditions]
    return [replaced.metadata.annotations, "example.com/python" in types, patched.metadata.name]


@step
async def reads_and_follows_a_log(session: "Session") -> Any:
    pod = session.pod("speaks", SPOKEN, restart_policy="Never")
    await done(session.core.create_namespaced_pod(NAMESPACE, pod))
    await session.watched(
        session.core.list_namespaced_pod, NAMESPACE, until=["ADDED", "speaks"], timeout_seconds=30,
        field_selector="metadata.name=speaks,status.phase=Succeeded",
    )  # fmt: skip
    whole = text(await done(session.core.read_namespaced_pod_log("speaks", NAMESPACE)))
    tail = text(await done(session.core.read_namespaced_pod_log("speaks", NAMESPACE, tail_lines=1, container="main")))
    if session.module == "kubernetes.aio":  # its watch begins again at the end of a log
        followed = await done(session.core.read_namespaced_pod_log("speaks", NAMESPACE, follow=True))
        return [whole, tail, followed.split()]
    stream = session.watch().stream(session.core.read_namespaced_pod_log, "speaks", NAMESPACE, follow=True)
    return [whole, tail, [line.strip() async for line in events(stream)]]


@step
async def lists_in_pages(session: "Session") -> Any:
    for number in range(5):
        await done(session.core.create_namespaced_config_map(NAMESPACE, config_map(f"page-{number}", n=str(number))))
    pages: list[list[str]] = []
    token = None
    while not pages or token:
        options: dict[str, Any] = {"_continue": token} if token else {}
        page = await done(session.core.list_namespaced_config_map(NAMESPACE, limit=2, **options))
        pages.append([item.metadata.name for item in page.items])
        token = page.metadata._continue if hasattr(page.metadata, "_continue") else page.metadata.var_continue
    everywhere = await done(session.core.list_config_map_for_all_namespaces(label_selector="nothing=here"))
    return [pages, everywhere.items]


@step
async def watches_from_a_version_with_a_timeout(session: "Session") -> Any:
    listed = await done(session.core.list_namespaced_config_map(NAMESPACE))
    await done(session.core.create_namespaced_config_map(NAMESPACE, config_map("watched")))
    await done(session.core.delete_namespaced_config_map("watched", NAMESPACE))
    options = {"resource_version": listed.metadata.resource_version, "timeout_seconds": 30}
    call = session.core.list_namespaced_config_map
    seen = await session.watched(call, NAMESPACE, until=["DELETED", "watched"], **options)
    quiet = await session.watched(call, NAMESPACE, until=None, label_selector="nothing=here", timeout_seconds=1)
    return [seen, quiet]


@step
async def patches_in_every_way(session: "Session") -> Any:
    maps = await session.resource("v1", "ConfigMap")
    operations = [{"op": "add", "path": "/data/json", "value": "1"}]
    by_type = await done(session.core.patch_namespaced_config_map("page-0", NAMESPACE, {"data": {"default": "1"}}))
    listed = await done(session.core.patch_namespaced_config_map("page-0", NAMESPACE, operations))
    for content_type, member in ((MERGE, "merge"), (STRATEGIC, "strategic")):
        body = {"metadata": {"name": "page-0"}, "data": {member: "1"}}
        await done(maps.patch(body=body, namespace=NAMESPACE, content_type=content_type))
    applied = await done(
        maps.server_side_apply(
            body=config_map("page-0", applied="1"), namespace=NAMESPACE, field_manager="python", force_conflicts=True
        )
    )
    removed = {"metadata": {"name": "page-0"}, "data": {"merge": None}}
    await done(maps.patch(body=removed, namespace=NAMESPACE, content_type=MERGE))
    found = await done(session.core.read_namespaced_config_map("page-0", NAMESPACE))
    managers = {entry.manager for entry in found.metadata.managed_fields if entry.operation == "Apply"}
    return [by_type.data, listed.data, dict(applied.data), found.data, sorted(managers)]


@step
async def replaces_at_its_version_alone(session: "Session") -> Any:
    found = await done(session.core.read_namespaced_config_map("page-1", NAMESPACE))
    found.data = {"n": "replaced"}
    replaced = await done(session.core.replace_namespaced_config_map("page-1", NAMESPACE, found))
    refused = await session.refusal(lambda: session.core.replace_namespaced_config_map("page-1", NAMESPACE, found))
    return [replaced.data, refused]


@step
async def raises_refusals(session: "Session") -> Any:
    core, bad = session.core, session.pod("Bad_Name")
    return [
        await session.refusal(lambda: core.read_namespaced_pod("nothing", NAMESPACE)),
        await session.refusal(lambda: core.create_namespaced_pod(NAMESPACE, bad)),
        await session.refusal(lambda: core.create_namespaced_config_map(NAMESPACE, config_map("page-1"))),
        await session.refusal(lambda: core.create_namespaced_config_map("nowhere", config_map("page-1"))),
        await session.refusal(lambda: core.delete_namespace("default")),
        await session.refusal(lambda: core.list_namespaced_pod(NAMESPACE, label_selector="a===b")),
    ]


@step
async def keeps_secrets(session: "Session") -> Any:
    metadata = session.client.V1ObjectMeta(name="password")
    secret = session.client.V1Secret(metadata=metadata, string_data={"user": "me"}, data={"key": "c2VjcmV0"})
    await done(session.core.create_namespaced_secret(NAMESPACE, secret))
    found = await done(session.core.read_namespaced_secret("password", NAMESPACE))
    return [
        found.type,
        {name: value if isinstance(value, str) else value.decode() for name, value in found.data.items()},
    ]


@step
async def writes_and_lists_events(session: "Session") -> Any:
    about = {"kind": "Pod", "name": "stays", "namespace": NAMESPACE}
    body = {
        "metadata": {"name": "from-python"},
        "involvedObject": about,
        "reason": "Tried",
        "message": "m",
        "type": "Normal",
    }
    created = await done(session.core.create_namespaced_event(NAMESPACE, body))
    selector = "involvedObject.name=stays"
    listed = await done(session.core.list_namespaced_event(NAMESPACE, field_selector=selector))
    reasons = {event.reason for event in listed.items}
    return [created.reason, {"Scheduled", "Started", "Tried"} <= reasons]


@step
async def writes_events_of_the_newer_group(session: "Session") -> Any:
    api = session.client.EventsV1Api(session.api_client)
    about = {"kind": "Pod", "name": "stays", "namespace": NAMESPACE}
    body = {
        "metadata": {"name": "newer"},
        "regarding": about,
        "reason": "Newer",
        "action": "Trying",
        "note": "n",
        "type": "Normal",
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingController": "example.com/python",
        "reportingInstance": "one",
    }
    created = await done(api.create_namespaced_event(NAMESPACE, body))
    older = await done(session.core.read_namespaced_event("newer", NAMESPACE))
    return [created.note, older.message, older.involved_object.name]


@step
async def leads_by_a_lease(session: "Session") -> Any:
    api = session.client.CoordinationV1Api(session.api_client)
    spec = session.client.V1LeaseSpec(holder_identity="me", lease_duration_seconds=10)
    lease = session.client.V1Lease(metadata=session.client.V1ObjectMeta(name="leader"), spec=spec)
    created = await done(api.create_namespaced_lease(NAMESPACE, lease))
    created.spec.holder_identity = "you"
    replaced = await done(api.replace_namespaced_lease("leader", NAMESPACE, created))
    return [replaced.spec.holder_identity, (await done(api.list_lease_for_all_namespaces())).items != []]


@step
async def knows_priority_classes(session: "Session") -> Any:
    api = session.client.SchedulingV1Api(session.api_client)
    body = {"metadata": {"name": NAMESPACE}, "value": 1000, "description": "of the session"}
    await done(api.create_priority_class(body))
    pod = await done(
        session.core.create_namespaced_pod(NAMESPACE, session.pod("urgent", priority_class_name=NAMESPACE))
    )
    await done(api.delete_priority_class(NAMESPACE))
    return [pod.spec.priority, pod.spec.preemption_policy]


@step
async def claims_devices(session: "Session") -> Any:
    claims = await session.resource("resource.k8s.io/v1", "ResourceClaim")
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "gpu"}}
    created = await done(claims.create(body={**body, "spec": {"devices": {"requests": requests}}}, namespace=NAMESPACE))
    names = []
    if hasattr(session.client, "ResourceV1Api"):  # from 34 on
        api = session.client.ResourceV1Api(session.api_client)
        names = [claim.metadata.name for claim in (await done(api.list_namespaced_resource_claim(NAMESPACE))).items]
        assert names == ["gpu"], names
    await done(claims.delete(name="gpu", namespace=NAMESPACE))
    return created.spec.devices.requests[0].exactly.allocationMode


@step
async def is_dynamic(session: "Session") -> Any:
    pods = await session.resource("v1", "Pod")
    listed = await done(pods.get(namespace=NAMESPACE, label_selector="app=python"))
    nodes = await session.resource("v1", "Node")
    extended = {"status": {"capacity": {"example.com/python": "3"}}}
    patched = await done(nodes.status.patch(name="node-1", body=extended, content_type=MERGE))
    watching = pods.watch(namespace=NAMESPACE, resource_version=0, timeout=1)
    seen = [event["object"].metadata.name async for event in events(watching)]
    try:  # kubernetes_asyncio returns the Status
        missing = (await done(pods.get(name="nothing", namespace=NAMESPACE))).code
    except session.dynamic.exceptions.NotFoundError as error:
        missing = error.status
    names = sorted(pod.metadata.name for pod in listed.items)
    return [names, patched.status.capacity["example.com/python"], "stays" in seen, missing]


@step
async def deletes_with_options(session: "Session") -> Any:
    core, options = (
        session.core,
        session.client.V1DeleteOptions(grace_period_seconds=0, propagation_policy="Background"),
    )
    found = await done(core.read_namespaced_config_map("page-2", NAMESPACE))
    conditions = session.client.V1Preconditions(uid="another")
    another = session.client.V1DeleteOptions(preconditions=conditions)
    refused = await session.refusal(lambda: core.delete_namespaced_config_map("page-2", NAMESPACE, body=another))
    own = session.client.V1DeleteOptions(preconditions=session.client.V1Preconditions(uid=found.metadata.uid))
    status = await done(core.delete_namespaced_config_map("page-2", NAMESPACE, body=own))
    dry = await done(core.delete_namespaced_config_map("page-3", NAMESPACE, dry_run="All"))
    eviction = session.client.V1Eviction(metadata=session.client.V1ObjectMeta(name="speaks", namespace=NAMESPACE))
    await done(core.create_namespaced_pod_eviction("speaks", NAMESPACE, eviction))
    listed = await done(core.list_namespaced_pod(NAMESPACE))
    await done(core.delete_namespaced_pod("stays", NAMESPACE, body=options))
    version = listed.metadata.resource_version
    await session.watched(
        core.list_namespaced_pod, NAMESPACE, until=["DELETED", "stays"], resource_version=version, timeout_seconds=30
    )
    await done(core.delete_collection_namespaced_config_map(NAMESPACE))
    left = await done(core.list_namespaced_config_map(NAMESPACE))
    statuses = [one if isinstance(one, dict) else one.to_dict() for one in (status, dry)]  # a dict from 37 on
    return [refused, [one["status"] for one in statuses], [item.metadata.name for item in left.items]]


@step
async def removes_the_namespace(session: "Session") -> Any:
    listed = await done(session.core.list_namespace())
    await done(session.core.delete_namespace(NAMESPACE))
    call, version = session.core.list_namespace, listed.metadata.resource_version
    seen = await session.watched(call, until=["DELETED", NAMESPACE], resource_version=version, timeout_seconds=60)
    return seen[-1][0]


async def main(module: str, kubeconfig: str, _namespace: str) -> int:
    config = importlib.import_module(f"{module}.config")
    await done(config.load_kube_config(kubeconfig))
    api_client = importlib.import_module(f"{module}.client").ApiClient()
    session, failed = Session(module, api_client), False
    for function in STEPS:
        name = getattr(function, "__name__", "")
        try:
            print(json.dumps([name, await asyncio.wait_for(function(session), 60)]), flush=True)
        except Exception:
            failed = True
            print(json.dumps([name, "failed"]), flush=True)
            traceback.print_exc()
    await done(api_client.close())
    return int(failed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
