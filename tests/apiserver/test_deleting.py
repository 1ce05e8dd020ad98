"""Deletion: at once, after grace periods, after finalizers, with the namespace, by eviction."""

from tests.apiserver.serving import Api, pod

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


async def create_pod(api: Api, grace: int = 30) -> None:
    assert (await api("POST", PODS, pod("p", terminationGracePeriodSeconds=grace))).code == 201


async def test_deletion_of_a_pod_on_no_node_is_at_once(api: Api) -> None:
    await create_pod(api)
    assert (await api("DELETE", f"{PODS}/p")).body["kind"] == "Pod"
    assert (await api("GET", f"{PODS}/p")).code == 404


async def test_deletion_of_a_pod_on_a_node_waits_for_the_node(api: Api) -> None:
    await create_pod(api, grace=10)
    bound = await api("POST", f"{PODS}/p/binding", {"target": {"kind": "Node", "name": "node"}})
    assert bound.code == 201
    marked = (await api("DELETE", f"{PODS}/p")).body["metadata"]
    assert (marked["deletionTimestamp"], marked["deletionGracePeriodSeconds"]) == ("2026-11-15T12:00:10Z", 10)
    sooner = (await api("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 2})).body["metadata"]
    assert sooner["deletionGracePeriodSeconds"] == 2
    later = (await api("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 60})).body["metadata"]
    assert later["deletionGracePeriodSeconds"] == 2
    assert (await api("DELETE", f"{PODS}/p?gracePeriodSeconds=0")).code == 200
    assert (await api("GET", f"{PODS}/p")).code == 404


async def test_deletion_of_another_object_of_the_same_name_is_refused(api: Api) -> None:
    await create_pod(api)
    answer = await api("DELETE", f"{PODS}/p", {"preconditions": {"uid": "another"}})
    assert (answer.code, answer.reason) == (409, "Conflict")


async def test_deletion_waits_for_finalizers(api: Api) -> None:
    await api("POST", MAPS, {"metadata": {"name": "m", "finalizers": ["example.com/wait"]}})
    assert "deletionTimestamp" in (await api("DELETE", f"{MAPS}/m")).body["metadata"]
    assert (await api.patch(f"{MAPS}/m", {"metadata": {"finalizers": None}})).code == 200
    assert (await api("GET", f"{MAPS}/m")).code == 404


async def test_a_deleted_namespace_is_terminating_and_takes_nothing_new(api: Api) -> None:
    await api("POST", "/api/v1/namespaces", {"metadata": {"name": "gone"}})
    answer = await api("DELETE", "/api/v1/namespaces/gone")
    assert (answer.code, answer.body["status"]["phase"]) == (200, "Terminating")
    refused = await api("POST", "/api/v1/namespaces/gone/pods", pod("p"))
    text = "unable to create new content in namespace gone because it is being terminated"
    assert (refused.code, refused.body["message"]) == (403, f'pods "p" is forbidden: {text}')
    assert refused.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"


async def test_the_propagation_of_a_deletion_is_a_finalizer(api: Api) -> None:
    for policy, finalizers in (("Foreground", ["foregroundDeletion"]), ("Orphan", ["orphan"])):
        await api("POST", MAPS, {"metadata": {"name": policy.lower()}})
        marked = (await api("DELETE", f"{MAPS}/{policy.lower()}", {"propagationPolicy": policy})).body["metadata"]
        assert marked["finalizers"] == finalizers
    assert (await api("DELETE", f"{MAPS}/orphan?propagationPolicy=None")).code == 422


async def test_deletion_of_a_protected_namespace_is_forbidden(api: Api) -> None:
    answer = await api("DELETE", "/api/v1/namespaces/default")
    assert (answer.code, answer.reason) == (403, "Forbidden")


async def test_deletion_of_a_collection_follows_the_selector(api: Api) -> None:
    for name in ("a", "b"):
        await api("POST", PODS, pod(name, labels={"is": name}))
    assert (await api("DELETE", f"{PODS}?labelSelector=is=a")).names == ["a"]
    assert (await api("GET", PODS)).names == ["b"]


async def test_eviction_deletes(api: Api) -> None:
    await create_pod(api)
    answer = await api("POST", f"{PODS}/p/eviction", {"kind": "Eviction", "metadata": {"name": "p"}})
    assert (answer.code, answer.body["status"]) == (201, "Success")
    assert (await api("GET", f"{PODS}/p")).code == 404
