"""Devices that claims of other namespaces hold, known only from what the API server has counted in their pools."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.explain.worlds import CLASS, DRIVER, claim, device, node, pod, published

from plugwright.errors import PeerRefused
from plugwright.explain.explanation import explain_pod
from plugwright.explain.fitting import fit_pod
from plugwright.explain.reading import UNREADABLE, read_world
from plugwright.explain.world import ApiObject, World

FOUR = published(*(device(f"gpu-{number}") for number in range(4)))
SINCE = "2026-11-19T20:00:00Z"


def counted(allocated: int, name: str = "ask", pool: str = "n1", created: str = SINCE, **more: Any) -> ApiObject:
    """A completed ResourcePoolStatusRequest about a pool of four devices."""
    counts = {"totalDevices": 4, "allocatedDevices": allocated, "availableDevices": 4 - allocated}
    entry = {"driver": DRIVER, "poolName": pool, "generation": 1, "nodeName": pool, **counts, **more}
    return {"metadata": {"name": name, "creationTimestamp": created}, "status": {"poolCount": 1, "pools": [entry]}}


class Cluster:
    """An API server's client of an account that may list the claims of its own namespace only."""

    def __init__(self, *requests: ApiObject, slices: tuple[ApiObject, ...] = (FOUR,)) -> None:
        self.requests, self.slices = list(requests), slices
        self.own = [claim("c")]

    def get(self, path: str) -> dict[str, object]:
        return {"gitVersion": "v1.36.4"}

    def list(self, path: str, **query: str) -> list[ApiObject]:
        if path == "/apis/resource.k8s.io/v1/resourceclaims":
            raise PeerRefused("Forbidden", "no")
        found = {
            "nodes": [node("n1")], "resourceslices": self.slices, "deviceclasses": [CLASS],
            "resourceclaims": self.own, "resourcepoolstatusrequests": self.requests,
        }  # fmt: skip
        return list(found.get(path.rpartition("/")[2], ()))

    def world(self) -> World:
        return read_world(self, "default")


def test_a_pod_waits_for_devices_that_only_the_counts_show_as_held() -> None:
    found = explain_pod(Cluster(counted(4)).world(), pod("w", claim="c"))
    assert found.answer == (
        "waits: no node has the devices for request gpu of claim c (n1: 4 allocated to other claims)"
    )
    assert found.counted == (
        f"0 of 4 devices available, 4 allocated in pool n1 of {DRIVER} (ResourcePoolStatusRequest ask of {SINCE})",
    )
    assert found.unseen[0].startswith("claims of other namespaces cannot be read: which devices they hold is assumed")
    assert found.cures == ()


def test_a_pod_fits_as_often_as_the_counts_have_available_devices() -> None:
    cluster = Cluster(counted(2))
    cluster.own = [claim("mine", "gpu-0")]
    template = {"metadata": {"namespace": "default", "name": "t"}, "spec": {"spec": claim("c")["spec"]}}
    wanted = pod("w", resourceClaims=[{"name": "dev", "resourceClaimTemplateName": "t"}])
    report = fit_pod(replace(cluster.world(), templates=(template,)), wanted, 4)
    assert (report.placed, report.wanted) == (2, 4)
    assert [text.partition(" in pool")[0] for text in report.counted] == ["2 of 4 devices available, 2 allocated"]


@pytest.mark.parametrize(
    "request_",
    [
        counted(4, generation=2),  # of slices that were replaced
        counted(4, totalDevices=5),
        counted(4, validationError="incomplete"),
        {"metadata": {"name": "ask"}},  # not answered yet
        counted(4, availableDevices=None),
    ],
    ids=["older", "other devices", "error", "unanswered", "no number"],
)
def test_a_count_that_does_not_match_the_pool_is_not_used_and_the_command_for_a_new_one_is_shown(
    request_: ApiObject,
) -> None:
    found = explain_pod(Cluster(request_).world(), pod("w", claim="c"))
    assert (found.state, found.counted) == ("fits", ())
    assert found.unseen[0] == UNREADABLE["claims"]
    command = (
        f'"kind": "ResourcePoolStatusRequest", "metadata": {{"generateName": "count-"}}, "spec": {{"driver": "{DRIVER}"'
    )
    assert command in found.unseen[1]
    assert found.unseen[1].endswith("| kubectl create -f -")


@pytest.mark.parametrize(
    "changes", [{"allowMultipleAllocations": True}, {"consumesCounters": [{"counterSet": "s", "counters": {}}]}]
)
def test_the_count_of_a_pool_with_shared_or_partitioned_devices_says_nothing_about_free_ones(
    changes: dict[str, Any],
) -> None:
    slices = published(*({**entry, **changes} for entry in FOUR["spec"]["devices"]))
    world = Cluster(counted(4), slices=(slices,)).world()
    assert explain_pod(world, pod("w", claim="c")).counted == ()


def test_the_newest_count_of_a_pool_is_used_and_tainted_devices_count_as_free_last() -> None:
    requests = counted(4, "old", created="2026-11-18T20:00:00Z"), counted(3)
    assert explain_pod(Cluster(*requests).world(), pod("w", claim="c")).state == "fits"
    tainted = published(*(device(f"gpu-{number}", taint="broken" if number == 0 else "") for number in range(4)))
    found = explain_pod(Cluster(counted(3), slices=(tainted,)).world(), pod("w", claim="c"))
    assert (found.state, "1 tainted" in found.answer) == ("waits", True)


def test_without_the_api_and_for_pods_without_claims_nothing_is_said_about_counts() -> None:
    class Older(Cluster):
        def list(self, path: str, **query: str) -> list[ApiObject]:
            if path.endswith("/resourcepoolstatusrequests"):
                raise PeerRefused("NotFound", "no")
            return super().list(path, **query)

    found = explain_pod(Older().world(), pod("w", claim="c"))
    assert (found.state, found.unseen[0], found.counted) == ("fits", UNREADABLE["claims"], ())
    assert not any("ResourcePoolStatusRequest" in entry for entry in found.unseen)
    plain = explain_pod(Cluster(counted(4)).world(), pod("w", 1))
    assert (plain.counted, plain.unseen[0]) == ((), UNREADABLE["claims"])
