"""Claims prepared and unprepared; numbers in comments are those of the facts about DRA."""

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.dra.resource_claims.claim_node import (
    DRIVER,
    PATIENT,
    POOL,
    QUICK,
    ClaimNode,
    Documents,
    Drives,
    claim,
    config,
    document,
    edits,
    result,
    uid_of,
)

from plugwright.attributes import ClaimReference
from plugwright.errors import ClaimRefused, ClaimWaits, PeerRefused, PluginError, PluginFailed
from plugwright.model import Allocation, Device, Mount
from plugwright.protocol import dra
from plugwright.protocol.dra import Claim, PreparedDevice

ONE = f"{DRIVER}/claim={uid_of('one')}-st0"


@pytest.fixture
def node(root: Path) -> ClaimNode:
    """A claim is prepared whenever it can be, however busy the machine is."""
    return ClaimNode.on(root, settings=PATIENT)


@pytest.fixture
def hurried(root: Path) -> ClaimNode:
    """A claim that cannot be prepared is refused in seconds."""
    return ClaimNode.on(root, settings=QUICK)


async def test_a_claim_is_prepared_for_its_containers(node: ClaimNode) -> None:
    node.api.put(document())
    async with node.serving() as client:
        answer = await client.prepare([claim()])
    assert answer == {uid_of("one"): [PreparedDevice(POOL, "st0", ("tape",), (ONE,))]}
    made = edits(node, ONE)
    assert made.env == {"TAPES": "st0"}
    assert [mounted.path for mounted in made.device_nodes] == ["/dev/st0"]
    assert node.drives.allocated == [["st0"]]


async def test_no_claims_are_prepared_and_unprepared_at_once(node: ClaimNode) -> None:
    async with node.serving() as client:
        assert await client.prepare([]) == {}
        assert await client.unprepare([]) == {}


async def test_an_unprepared_claim_leaves_nothing_behind(node: ClaimNode) -> None:
    node.api.put(document())
    async with node.serving() as client:
        await client.prepare([claim()])
        assert len(node.leftovers()) == 2
        for _ in range(2):
            assert await client.unprepare([claim()]) == {uid_of("one"): ""}
    assert node.leftovers() == []
    assert [device.id for device in node.drives.released] == ["st0"]
    assert node.prepared.held() == {}


async def test_a_claim_never_seen_is_unprepared_while_the_api_server_is_away(node: ClaimNode) -> None:
    node.api.away = True
    assert await node.unprepare(claim()) == ""
    assert node.drives.released == []


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (None, "ResourceClaim default/one does not exist"),
        (document(uid="another"), "ResourceClaim default/one was replaced: its uid is another, not one-0000-0000"),
        ({**document(), "status": {}}, "ResourceClaim default/one is not allocated"),
        (document("one", result(pool="node-2")), "device st0 of pool node-2 is not on this node, node-1"),
    ],
    ids=["gone", "replaced", "not allocated", "another node"],
)
async def test_a_claim_that_cannot_be_prepared_is_refused_at_once(
    root: Path, made: dict[str, object] | None, text: str
) -> None:
    node = ClaimNode.on(root, settings=PATIENT)
    if made is not None:
        node.api.put(made)
    assert await node.prepare(claim()) == text
    assert node.leftovers() == []


async def test_claims_of_one_call_fail_each_for_itself(hurried: ClaimNode) -> None:
    hurried.api.put(document("one"), document("two", result("st1")), document("three", result("st9")))
    async with hurried.serving() as client:
        answers = await client.prepare([claim("one"), claim("two"), claim("three"), claim("none")])
    assert [len(answers[uid_of(name)]) for name in ("one", "two")] == [1, 1]
    assert answers[uid_of("three")] == "device st9 is not on this node"
    assert answers[uid_of("none")] == "ResourceClaim default/none does not exist"


async def test_a_container_that_names_the_request_gets_the_device_of_its_subrequest(node: ClaimNode) -> None:  # 0.2
    node.api.put(document("one", result(request="tape/big")))
    (device,) = await node.prepare(claim())
    assert device.requests == ("tape",)


async def test_devices_of_one_request_are_allocated_together_and_named_once(node: ClaimNode) -> None:
    node.api.put(document("one", result("st0"), result("st2"), result("st1", "spare")))
    first, second, spare = await node.prepare(claim())
    assert node.drives.allocated == [["st0", "st2"], ["st1"]]
    assert (first.cdi_devices, second.cdi_devices) == ((ONE,), ())
    assert spare.cdi_devices == (f"{DRIVER}/claim={uid_of('one')}-st1",)
    assert edits(node, ONE).env == {"TAPES": "st0,st2"}


async def test_an_allocation_without_edits_has_no_cdi_device(root: Path) -> None:
    node = ClaimNode.on(root, tells_containers=False)
    node.drives.allocation = lambda devices: Allocation(cdi=["example.com/tape=st0"])
    node.api.put(document())
    (device,) = await node.prepare(claim())
    assert device.cdi_devices == ("example.com/tape=st0",)
    assert node.cdi_files() == []


async def test_mounts_and_foreign_cdi_names_reach_the_container(node: ClaimNode) -> None:
    node.drives.allocation = lambda devices: Allocation(
        mounts=[Mount("/opt/tape", read_only=True)], cdi=["example.com/tape=st0"]
    )
    node.api.put(document())
    (device,) = await node.prepare(claim())
    assert device.cdi_devices == (ONE, "example.com/tape=st0")
    assert edits(node, ONE).mounts[0].options == ("ro", "nosuid", "bind")


async def test_a_claim_that_is_prepared_gets_the_same_answer_and_its_cdi_file_again(node: ClaimNode) -> None:  # 0.10
    node.api.put(document())
    answer = await node.prepare(claim())
    content = node.cdi_files()[0].read_bytes()
    node.cdi_files()[0].unlink()
    again = node.restart()
    assert await again.prepare(claim()) == answer
    assert again.cdi_files()[0].read_bytes() == content
    assert node.drives.allocated == [["st0"]]


async def test_a_claim_that_is_prepared_is_answered_while_the_api_server_is_away(node: ClaimNode) -> None:
    node.api.put(document())
    answer = await node.prepare(claim())
    node.api.away = True
    assert await node.prepare(claim()) == answer


async def test_a_claim_that_is_prepared_is_answered_although_its_device_fails(node: ClaimNode) -> None:
    node.api.put(document())
    answer = await node.prepare(claim())
    node.drives.devices["st0"] = Device("st0").unhealthy("no tape", "empty")
    assert await node.prepare(claim()) == answer


async def test_after_a_reboot_a_claim_is_prepared_again(node: ClaimNode) -> None:  # 0.10
    node.api.put(document())
    answer = await node.prepare(claim())
    node = node.reboot("boot-2")
    assert node.cdi_files() == []
    assert await node.prepare(claim()) == answer
    assert node.drives.allocated == [["st0"], ["st0"]]
    assert edits(node, ONE).env == {"TAPES": "st0"}


async def test_after_a_reboot_a_device_is_still_that_of_its_claim(hurried: ClaimNode) -> None:
    hurried.api.put(document("one"), document("two"))
    await hurried.prepare(claim("one"))
    hurried = hurried.reboot("boot-2")
    assert "is held by ResourceClaim default/one" in await hurried.prepare(claim("two"))


async def test_a_device_is_not_given_to_two_claims(hurried: ClaimNode) -> None:  # 6.2
    hurried.api.put(document("one"), document("two"))
    answers = await hurried.prepare(claim("one"), claim("two"))
    texts = [answer for answer in answers.values() if isinstance(answer, str)]
    assert texts == ["device st0 is held by ResourceClaim default/one until that is unprepared"]
    assert hurried.drives.allocated == [["st0"]]


async def test_a_claim_that_waits_for_a_device_has_it_when_it_is_free(root: Path) -> None:  # 0.3
    node = ClaimNode.on(root, settings=PATIENT)
    node.api.put(document("one"), document("two"))
    await node.prepare(claim("one"))
    waiting = asyncio.create_task(node.prepare(claim("two")))
    await node.until(lambda: ("two", node.reports[-1][1]) == node.reports[-1] and bool(node.reports[-1][1]))
    assert await node.unprepare(claim("one")) == ""
    (device,) = await waiting
    assert device.name == "st0"


async def test_admin_access_sees_a_device_that_is_held(hurried: ClaimNode) -> None:  # 6.7
    hurried.api.put(
        document("one"),
        document("monitor", result("st0", "all", adminAccess=True), result("st1", "all", adminAccess=True)),
        document("mixed", result("st0", "watch", adminAccess=True), result("st0", "own")),
        document("two", result("st1")),
    )
    assert len(await hurried.prepare(claim("one"))) == 1
    assert len(await hurried.prepare(claim("monitor"))) == 2
    assert len(await hurried.prepare(claim("two"))) == 1
    assert list(hurried.prepared.held()) == ["st0", "st1"]
    assert "st0 is held by ResourceClaim default/one" in await hurried.prepare(claim("mixed"))
    await hurried.unprepare(claim("monitor"))
    assert hurried.drives.released == []


async def test_admin_access_sees_a_device_that_fails_or_is_elsewhere(node: ClaimNode) -> None:
    node.drives.devices["st0"] = Device("st0").unhealthy("no tape")
    node.drives.refusals["st1"] = "held by the pod default/a"
    node.api.put(document("one", result("st0", adminAccess=True), result("st1", adminAccess=True)))
    assert len(await node.prepare(claim())) == 2


async def test_one_device_twice_in_a_claim_has_two_cdi_names(node: ClaimNode) -> None:
    node.api.put(document("one", result("st0", "watch", adminAccess=True), result("st0", "own")))
    watch, own = await node.prepare(claim())
    assert watch.cdi_devices == (ONE,)
    assert own.cdi_devices == (f"{ONE}-own",)


def shared(name: str, memory: str, share_id: str, device: str = "card") -> dict[str, object]:
    return document(name, result(device, shareID=share_id, consumedCapacity={f"{DRIVER}/memory": memory}))


async def test_claims_share_a_device_by_its_capacity(hurried: ClaimNode) -> None:
    hurried.drives.add(Device("card", capacity={"memory": "40Gi"}, allow_multiple=True))
    hurried.api.put(shared("one", "20Gi", "s-1"), shared("two", "10Gi", "s-2"), shared("three", "20Gi", "s-3"))
    hurried.api.put(document("whole", result("card")))
    (first,), (second,) = await hurried.prepare(claim("one")), await hurried.prepare(claim("two"))
    assert (first.share_id, second.share_id) == ("s-1", "s-2")
    assert [device.capacity["memory"].value for device in hurried.drives.given] == [20 * 2**30, 10 * 2**30]
    assert [device.share_id for device in hurried.drives.given] == ["s-1", "s-2"]
    assert "its claims would have 53687091200" in await hurried.prepare(claim("three"))
    assert "card is held by ResourceClaim default/one" in await hurried.prepare(claim("whole"))
    await hurried.unprepare(claim("one"))
    assert hurried.drives.released[0].capacity["memory"].value == 20 * 2**30
    assert hurried.drives.released[0].share_id == "s-1"
    assert len(await hurried.prepare(claim("three"))) == 1


async def test_the_share_id_is_left_out_for_a_kubelet_of_v1beta1(node: ClaimNode) -> None:
    node.api.put(document("one", result(shareID="s-1")))
    async with node.serving(dra.VERSIONS[1]) as client:
        answer = await client.prepare([claim()])
    assert answer == {uid_of("one"): [PreparedDevice(POOL, "st0", ("tape",), (ONE,))]}


async def test_the_plugin_gets_the_parameters_of_its_claim(node: ClaimNode) -> None:
    node.api.put(document("one", configs=[config({"speed": {"limit": 9}})]))
    await node.prepare(claim())
    assert node.drives.given[0].parameters == {"speed": {"limit": 9}}
    await node.restart().unprepare(claim())
    assert node.drives.released[0].parameters == {"speed": {"limit": 9}}


async def test_parameters_that_the_plugin_does_not_know_are_refused_in_its_words(root: Path) -> None:
    node = ClaimNode.on(root, settings=PATIENT)

    def check(parameters: Mapping[str, object]) -> None:
        raise PluginError(f"no parameter {', '.join(parameters)}")

    node.drives.check = check
    node.api.put(document("one", configs=[config({"sped": 9})]))
    assert await node.prepare(claim()) == "parameters for request tape: no parameter sped"
    assert node.drives.allocated == []


async def test_a_claim_without_parameters_is_not_checked(node: ClaimNode) -> None:
    def check(parameters: Mapping[str, object]) -> None:
        raise PluginError("takes no parameters")

    node.drives.check = check
    node.api.put(document("one"), document("two", result("st1"), configs=[config({"a": 1}, "other")]))
    assert [len(answer) for answer in (await node.prepare(claim("one"), claim("two"))).values()] == [1, 1]


async def test_an_unhealthy_device_is_refused_with_its_reason(hurried: ClaimNode) -> None:
    hurried.drives.devices["st0"] = Device("st0").unhealthy("no tape", "empty")
    hurried.api.put(document("one"))
    assert await hurried.prepare(claim()) == "device st0 is Unhealthy: no tape"
    tolerated = {"key": "plugwright.dev/unhealthy", "operator": "Exists", "effect": "NoSchedule"}
    hurried.api.put(document("two", result(tolerations=[tolerated])))
    assert len(await hurried.prepare(claim("two"))) == 1


async def test_a_device_that_the_other_api_has_is_waited_for_until_it_comes_back(root: Path) -> None:
    node = ClaimNode.on(root, settings=PATIENT)
    node.drives.refusals["st0"] = "held by the pod default/a"

    async def arrived(name: str) -> None:
        if node.reports:
            node.drives.refusals.clear()

    node.drives.arrived = arrived
    node.api.put(document())
    assert len(await node.prepare(claim())) == 1
    assert node.reports == [
        ("one", "device st0 cannot be given to a claim: held by the pod default/a"),
        ("one", ""),
    ]


async def test_an_api_server_that_is_away_is_asked_again_inside_the_call(root: Path) -> None:
    node = ClaimNode.on(root, settings=PATIENT)
    node.api.away = True
    node.api.put(document())
    waiting = asyncio.create_task(node.prepare(claim()))
    await node.until(lambda: node.api.asked > 2)
    node.api.away = False
    assert len(await waiting) == 1


async def test_the_last_reason_is_in_the_error(hurried: ClaimNode) -> None:
    hurried.api.away = True
    text = "ResourceClaim default/one cannot be read, the API server does not answer: connection refused"
    assert await hurried.prepare(claim()) == text


async def test_an_attempt_that_hangs_ends_with_the_call(hurried: ClaimNode) -> None:
    async def arrived(name: str) -> None:
        await asyncio.Event().wait()

    hurried.drives.arrived = arrived
    hurried.api.put(document())
    assert await hurried.prepare(claim()) == f"not prepared within {QUICK.limit:g} s"


async def test_a_device_node_that_is_not_there_is_no_success(root: Path) -> None:  # 2.8
    node = ClaimNode.on(root, settings=PATIENT)
    path = root / "host" / "dev" / "st0"
    path.unlink()
    node.api.put(document())
    waiting = asyncio.create_task(node.prepare(claim()))
    await node.until(lambda: ("one", "device node /dev/st0 is not there on the node") in node.reports)
    path.touch()
    assert len(await waiting) == 1


async def test_a_plugin_that_fails_is_called_again_and_its_words_are_said(hurried: ClaimNode) -> None:
    def fail(devices: object) -> Allocation:
        raise PluginFailed("example.com/tape", "allocate", ValueError("jammed"))

    hurried.drives.allocation = fail
    hurried.api.put(document())
    assert "allocate() of example.com/tape failed: ValueError: jammed" in await hurried.prepare(claim())
    assert len(hurried.drives.allocated) > 1
    assert hurried.cdi_files() == []
    assert await hurried.unprepare(claim()) == ""
    assert hurried.leftovers() == []


async def test_a_driver_that_fails_answers_all_the_same(node: ClaimNode, caplog: pytest.LogCaptureFixture) -> None:
    def fail(devices: object) -> Allocation:
        raise ZeroDivisionError("a defect")

    node.drives.allocation = fail
    node.api.put(document())
    assert await node.prepare(claim()) == "the driver failed: a defect"
    assert "claim not prepared" in caplog.text


async def test_a_release_that_fails_is_an_error_and_the_device_stays_taken(hurried: ClaimNode) -> None:
    hurried.api.put(document("one"), document("two"))
    await hurried.prepare(claim("one"))
    hurried.drives.release_error = PluginError("jammed")
    assert await hurried.unprepare(claim("one")) == "jammed"
    assert "device st0 is held by ResourceClaim default/one" in await hurried.prepare(claim("two"))
    hurried.drives.release_error = None
    assert await hurried.unprepare(claim("one")) == ""  # the kubelet tries again
    assert hurried.leftovers() == []
    assert [device.name for device in await hurried.prepare(claim("two"))] == ["st0"]


@pytest.mark.parametrize("again", ["same process", "restart"])
async def test_a_claim_that_was_unprepared_half_way_can_be_prepared_again(node: ClaimNode, again: str) -> None:
    node.api.put(document())
    await node.prepare(claim())
    (mount,) = edits(node, ONE).mounts
    (spec,) = node.cdi_files()
    spec.rename(spec.with_suffix(".away"))
    (spec / "in the way").mkdir(parents=True)
    assert "directory" in (await node.unprepare(claim())).lower()
    assert [claimed.name for claimed in node.prepared.latest.value[uid_of("one")].devices] == ["st0"]  # it keeps it
    shutil.rmtree(spec)
    spec.with_suffix(".away").unlink()
    shutil.rmtree(Path(mount.host_path).parents[1])
    node = node if again == "same process" else node.restart()
    assert [device.name for device in await node.prepare(claim())] == ["st0"]
    assert node.drives.allocated == [["st0"], ["st0"]]  # since it was released
    assert len(node.cdi_files()) == 1
    assert Path(edits(node, ONE).mounts[0].host_path).exists()


async def test_a_claim_whose_record_cannot_be_written_keeps_its_files_and_its_device(hurried: ClaimNode) -> None:
    hurried.api.put(document("one"), document("two"))
    await hurried.prepare(claim("one"))
    spec, (mount,) = hurried.cdi_files()[0].read_bytes(), edits(hurried, ONE).mounts
    away = hurried.plugin_dir.with_name("away")
    hurried.plugin_dir.rename(away)
    hurried.plugin_dir.write_text("a file where the directory should be")
    assert "plugins/tape.example.com" in await hurried.unprepare(claim("one"))
    assert hurried.drives.released == []
    assert hurried.cdi_files()[0].read_bytes() == spec
    hurried.plugin_dir.unlink()
    away.rename(hurried.plugin_dir)
    assert Path(mount.host_path).exists()
    assert "held by ResourceClaim default/one" in await hurried.prepare(claim("two"))
    assert [device.name for device in await hurried.prepare(claim("one"))] == ["st0"]
    assert hurried.drives.allocated == [["st0"]]  # it was prepared all the time


async def test_files_of_a_prepared_claim_are_written_again(node: ClaimNode) -> None:
    node.api.put(document())
    await node.prepare(claim())
    (mount,) = edits(node, ONE).mounts
    shutil.rmtree(Path(mount.host_path).parents[1])
    node.cdi_files()[0].unlink()
    await node.prepare(claim())
    assert node.drives.allocated == [["st0"]]  # the plugin is not called again
    assert json.loads(Path(mount.host_path).read_text().splitlines()[0])["requests"][0]["name"] == "tape"
    assert len(node.cdi_files()) == 1


async def test_a_plugin_knows_the_claim_and_its_request_and_admin_access(node: ClaimNode) -> None:
    node.api.put(document("one", result("st0", adminAccess=True), result("st1", "other")))
    await node.prepare(claim("one"))
    observed, given = node.drives.given
    assert (observed.admin_access, given.admin_access) == (True, False)
    assert observed.claim == ClaimReference(uid_of("one"), "default", "one", "tape")
    assert given.claim == ClaimReference(uid_of("one"), "default", "one", "other")


@pytest.mark.parametrize("effect", ["NoSchedule", "None"])
async def test_a_failed_device_is_refused_only_if_its_taint_keeps_claims_away(hurried: ClaimNode, effect: str) -> None:
    hurried.drives.effect = effect
    hurried.drives.add(Device("st0").unhealthy("made to fail"))
    hurried.api.put(document())
    answer = await hurried.prepare(claim())
    if effect == "None":
        assert [device.name for device in answer] == ["st0"]
    else:
        assert answer == "device st0 is Unhealthy: made to fail"


@pytest.mark.parametrize("tolerated", ["NoExecute", "NoSchedule", ""])
async def test_a_failed_device_with_no_execute_is_given_to_claims_that_tolerate_it(
    hurried: ClaimNode, tolerated: str
) -> None:
    hurried.drives.effect = "NoExecute"
    hurried.drives.add(Device("st0").unhealthy("made to fail"))
    toleration = {"operator": "Exists", **({"effect": tolerated} if tolerated else {})}
    hurried.api.put(document("one", result("st0", tolerations=[toleration])))
    answer = await hurried.prepare(claim())
    if tolerated == "NoSchedule":
        assert answer == "device st0 is Unhealthy: made to fail"
    else:
        assert [device.name for device in answer] == ["st0"]


async def test_the_longest_names_can_be_prepared(node: ClaimNode) -> None:
    name, namespace = "n" * 253, "s" * 63
    made = document(name, uid="u-1")
    made["metadata"]["namespace"] = namespace
    node.api.put(made)
    assert [device.name for device in await node.prepare(claim(name, "u-1", namespace))] == ["st0"]
    [found] = node.files.find()
    assert (found.namespace, found.name) == (namespace, name)
    assert await node.unprepare(claim(name, "u-1", namespace)) == ""
    assert node.leftovers() == []


async def test_a_device_that_is_gone_is_released_by_its_id(node: ClaimNode) -> None:
    node.drives.add(Device("ST_9"), "st-9-abcd")
    node.api.put(document("one", result("st-9-abcd")))
    await node.prepare(claim())
    del node.drives.devices["st-9-abcd"]
    assert await node.restart().unprepare(claim()) == ""
    assert [device.id for device in node.drives.released] == ["ST_9"]


def reserved(made: dict[str, Any], *pods: str) -> dict[str, Any]:
    made["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"{pod}-pod"} for pod in pods]
    return made


async def test_a_claim_unprepared_while_another_pod_has_it_stays_until_the_last_is_gone(node: ClaimNode) -> None:  # 2.7
    node.api.put(reserved(document("one"), "running", "never-started"))
    answer = await node.prepare(claim("one"))
    assert await node.unprepare(claim("one")) == ""
    await node.preparation.abandoned.undo()
    assert edits(node, ONE)
    assert (list(node.prepared.held()), node.drives.released) == (["st0"], [])
    (kept,) = (await node.prepared.read()).values()
    assert kept.pods == ("never-started", "running")
    node.api.put(reserved(document("one"), "running"))
    node = node.restart()
    await node.preparation.abandoned.undo()
    assert edits(node, ONE)
    node.api.put(reserved(document("one")))
    await node.preparation.abandoned.undo()
    assert (node.leftovers(), node.prepared.held()) == ([], {})
    assert await node.prepare(claim("one")) == answer


async def test_a_claim_that_ended_is_looked_at_soon(node: ClaimNode) -> None:
    node = node.restart(settings=replace(PATIENT, lookup_ended=0.01))
    node.api.put(reserved(document("one"), "a", "b"))
    running = asyncio.create_task(node.preparation.run())
    await node.prepare(claim())
    await node.unprepare(claim())
    asked = node.api.asked
    await node.until(lambda: node.api.asked > asked + 3)
    assert list(node.prepared.held()) == ["st0"]
    node.api.put(reserved(document("one")))
    await node.until(lambda: not node.prepared.held())
    running.cancel()
    await asyncio.wait((running,))
    assert node.leftovers() == []


async def test_a_device_of_a_claim_that_ended_is_free_for_the_next_at_once(hurried: ClaimNode) -> None:
    hurried.api.put(reserved(document("one"), "a", "b"), document("two"))
    await hurried.prepare(claim("one"))
    assert await hurried.unprepare(claim("one")) == ""
    assert "is held by ResourceClaim default/one" in await hurried.prepare(claim("two"))
    hurried.api.remove("one")
    assert len(await hurried.prepare(claim("two"))) == 1
    assert [device.id for device in hurried.drives.released] == ["st0"]


async def test_a_claim_that_ended_is_the_kubelets_again_when_it_is_prepared(node: ClaimNode) -> None:
    node.api.put(reserved(document("one"), "a", "b"))
    answer = await node.prepare(claim())
    await node.unprepare(claim())
    assert await node.prepare(claim()) == answer
    assert node.drives.allocated == [["st0"]]
    node.api.put(reserved(document("one")))
    await node.preparation.abandoned.undo()  # as for any claim that the kubelet has
    assert list(node.prepared.held()) == ["st0"]
    assert await node.unprepare(claim()) == ""
    assert node.leftovers() == []


async def test_a_claim_is_unprepared_without_an_api_server_whoever_had_it(node: ClaimNode) -> None:
    node.api.put(reserved(document("one"), "a", "b"))
    await node.prepare(claim())
    node.api.away = True
    assert await node.unprepare(claim()) == ""
    assert node.leftovers() == []


async def test_a_claim_that_is_allocated_anew_gives_its_old_device_back(node: ClaimNode) -> None:
    node.api.put(document("one", result("st0")))
    await node.prepare(claim())
    node.api.put(document("one", result("st1")))
    (device,) = await node.prepare(claim())
    assert device.name == "st1"
    assert [device.id for device in node.drives.released] == ["st0"]
    assert list(node.prepared.held()) == ["st1"]


async def test_a_claim_unprepared_while_it_waits_is_not_prepared_afterwards(root: Path) -> None:
    node = ClaimNode.on(root, settings=PATIENT)
    node.drives.refusals["st0"] = "busy"
    node.api.put(document())
    waiting = asyncio.create_task(node.prepare(claim()))
    await node.until(lambda: bool(node.reports))
    assert await node.unprepare(claim()) == ""
    node.drives.refusals.clear()
    assert await waiting == "ResourceClaim default/one was unprepared while it waited"
    assert node.leftovers() == []
    assert node.prepared.held() == {}


async def test_a_claim_that_another_process_unprepares_meanwhile_leaves_nothing_behind(root: Path) -> None:
    unpreparing: list[asyncio.Task[str]] = []

    class Interrupted(Drives):
        async def allocate(self, devices: Sequence[Device]) -> Allocation:
            unpreparing.append(asyncio.create_task(other.unprepare(claim())))
            await asyncio.wait(unpreparing, timeout=0.1)
            assert self.released == [], "it waits until the claim is prepared"
            return await super().allocate(devices)

    node = ClaimNode(root, Documents(), Interrupted.on(root), settings=PATIENT)
    other = node.restart()
    node.api.put(document())
    assert len(await node.prepare(claim())) == 1
    assert await unpreparing[0] == ""
    assert (node.leftovers(), await node.prepared.read()) == ([], {})
    assert len(node.drives.released) == 1


async def test_a_claim_that_is_prepared_while_it_is_looked_up_stays(root: Path) -> None:
    class SlowDocuments(Documents):
        async def claim(self, namespace: str, name: str) -> Mapping[str, object]:
            if not self.away:
                return await super().claim(namespace, name)
            self.away = False
            self.put(document())
            assert len(await slow.prepare(claim())) == 1
            raise PeerRefused("NotFound", name)

    slow = ClaimNode(root, SlowDocuments(), Drives.on(root))
    slow.api.put(document())
    slow.drives.allocation = lambda devices: Allocation(nodes=["/dev/missing"])
    await slow.prepare(claim())
    slow.drives.allocation, slow.api.away = None, True
    await slow.preparation.abandoned.undo()
    assert list(slow.prepared.held()) == ["st0"]
    assert edits(slow, ONE)


async def test_a_call_that_is_given_up_leaves_what_the_next_can_finish(root: Path) -> None:
    node = ClaimNode.on(root, settings=PATIENT)
    node.api.put(document())
    node.drives.refusals["st0"] = "busy"
    async with node.serving() as client:
        with pytest.raises(Exception, match=r"0\.05 s|deadline|answer"):
            await client.prepare([claim()], timeout=0.05)
        node.drives.refusals.clear()
        assert len((await client.prepare([claim()]))[uid_of("one")]) == 1


@pytest.mark.parametrize(
    "hostile",
    [
        Claim("default", "one", "../../../etc/cron.d/x"),
        Claim("..", "one", "u"),
        Claim("default", "../../one", "u"),
        Claim("default", "one", ""),
        Claim("", "", ""),
        Claim("default", "one\n", "u"),
        Claim("default", "one?x=1#", "u"),
    ],
    ids=repr,
)
async def test_hostile_names_are_refused_and_reach_no_path(root: Path, hostile: Claim) -> None:
    node = ClaimNode.on(root / "a" / "b")
    async with node.serving() as client:
        answer = await client.prepare([hostile])
        assert "must be one that Kubernetes allows" in str(answer[hostile.uid])
        assert await client.unprepare([hostile]) == {hostile.uid: ""}
    assert node.api.asked == 0
    assert ([*root.iterdir()], [*(root / "a").iterdir()]) == ([root / "a"], [node.root])
    assert node.leftovers() == []


async def test_a_checkpoint_that_cannot_be_written_is_said_and_costs_no_device(hurried: ClaimNode) -> None:
    hurried.plugin_dir.parent.mkdir(parents=True)
    hurried.plugin_dir.write_text("a file where the directory should be")
    hurried.api.put(document())
    assert "plugins/tape.example.com" in await hurried.prepare(claim())
    assert "plugins/tape.example.com" in await hurried.unprepare(claim())
    assert hurried.drives.allocated == []
    hurried.plugin_dir.unlink()
    assert len(await hurried.prepare(claim())) == 1


async def test_claims_left_behind_are_undone_when_they_are_gone(hurried: ClaimNode) -> None:  # 2.9
    hurried.api.put(document("one"), document("two", result("st1")), document("three", result("st2")))
    hurried.drives.allocation = lambda devices: Allocation(nodes=["/dev/missing"])
    for name in ("one", "two"):
        assert "is not there" in await hurried.prepare(claim(name))
    hurried.drives.allocation = None
    assert len(await hurried.prepare(claim("three"))) == 1
    assert list(hurried.prepared.held()) == ["st0", "st1", "st2"]
    hurried = hurried.restart()
    hurried.api.remove("one")
    hurried.api.remove("three")  # it is prepared, so its pod may still run: the kubelet says when it ends
    await hurried.preparation.abandoned.undo()
    assert list(hurried.prepared.held()) == ["st1", "st2"]
    assert [device.id for device in hurried.drives.released] == ["st0"]
    hurried = hurried.reboot("boot-2")
    await hurried.preparation.abandoned.undo()
    assert list(hurried.prepared.held()) == ["st1"]


async def test_claims_left_behind_stay_while_the_api_server_is_away(
    hurried: ClaimNode, caplog: pytest.LogCaptureFixture
) -> None:
    hurried.drives.allocation = lambda devices: Allocation(nodes=["/dev/missing"])
    hurried.api.put(document())
    await hurried.prepare(claim())
    hurried.api.away = True
    hurried = hurried.restart(settings=replace(QUICK, lookup=0.01))
    asked = hurried.api.asked
    running = asyncio.create_task(hurried.preparation.run())
    await hurried.until(lambda: hurried.api.asked > asked + 10)
    assert list(hurried.prepared.held()) == ["st0"]
    assert caplog.text.count("abandoned claims not looked up") == 1
    hurried.api.away = False
    hurried.api.remove("one")
    await hurried.until(lambda: not hurried.prepared.held())
    running.cancel()
    await asyncio.wait((running,))


@pytest.mark.parametrize(
    "wrong",
    [
        {"uid": 7},
        {"status": 7},
        {"status": {"allocation": "st0"}},
        {"status": {"allocation": {"devices": {"results": [result(consumedCapacity={"size": "much"})]}}}},
    ],
    ids=str,
)
async def test_a_wrong_answer_does_not_end_a_claim(hurried: ClaimNode, wrong: dict[str, Any]) -> None:
    right = reserved(document(), "a", "b")
    hurried.api.put(right)
    await hurried.prepare(claim())
    await hurried.unprepare(claim())
    metadata = {**right["metadata"], **({"uid": wrong["uid"]} if "uid" in wrong else {})}
    hurried.api.put({**right, **wrong, "metadata": metadata})
    with pytest.raises(ClaimRefused):
        await hurried.preparation.abandoned.undo()
    assert list(hurried.prepared.held()) == ["st0"]
    assert hurried.drives.released == []
    hurried.api.remove("one")
    await hurried.preparation.abandoned.undo()
    assert list(hurried.prepared.held()) == []


async def test_a_wrong_answer_keeps_a_claim_waiting(node: ClaimNode) -> None:
    node.api.put({"metadata": {"namespace": "default", "name": "one"}})
    preparing = asyncio.create_task(node.prepare(claim()))
    await node.until(lambda: node.api.asked > 2)
    node.api.put(document())
    assert len(await preparing) == 1


async def test_cdi_files_that_vanished_are_written_again_when_the_driver_starts(node: ClaimNode) -> None:  # 2.6
    node.api.put(document("one"), document("two", result("st1")))
    await node.prepare(claim("one"), claim("two"))
    files = node.cdi_files()
    for path in files:
        path.unlink()
    node = node.restart()
    node.api.away = True
    running = asyncio.create_task(node.preparation.run())
    await node.until(lambda: [path for path in node.cdi_files() if path.suffix == ".json"] == files)
    running.cancel()
    await asyncio.wait((running,))
    assert edits(node, ONE).env == {"TAPES": "st0"}


async def test_one_claim_that_cannot_be_read_does_not_keep_others(hurried: ClaimNode) -> None:
    hurried.api.put(document("one"), document("two", result("st1")))
    hurried.drives.allocation = lambda devices: Allocation(nodes=["/dev/missing"])
    await hurried.prepare(claim("one"), claim("two"))
    hurried.api.unreadable = "one"
    hurried.api.remove("two")
    with pytest.raises(ClaimWaits, match="ResourceClaim default/one cannot be read: nested too deep"):
        await hurried.preparation.abandoned.undo()
    assert list(hurried.prepared.held()) == ["st0"]


async def test_a_claim_that_is_prepared_asks_no_device_to_move(node: ClaimNode) -> None:
    arrived = []

    async def arrive(name: str) -> None:
        arrived.append(name)

    node.drives.arrived = arrive
    node.api.put(document())
    for _ in range(3):
        await node.prepare(claim())
    assert arrived == ["st0"]


async def test_containers_are_told_of_their_devices(node: ClaimNode) -> None:  # 2.9
    node.drives.add(Device("st0", attributes={"model": "LTO-9", "slots": 4, "own": [1]}))
    node.api.put(document())
    await node.prepare(claim())
    (mount,) = edits(node, ONE).mounts
    assert mount.container_path == (
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/one/tape/tape.example.com-metadata.json"
    )
    objects = [json.loads(line) for line in Path(mount.host_path).read_text().splitlines()]
    assert [made["apiVersion"] for made in objects] == [
        "metadata.resource.k8s.io/v1beta1",
        "metadata.resource.k8s.io/v1alpha1",
    ]
    (device,) = objects[0]["requests"][0]["devices"]
    assert device["attributes"] == {"model": {"string": "LTO-9"}, "slots": {"int": 4}, "id": {"string": "st0"}}
