"""The managers of fields: sets of fields, and who owns what after many writes of the same fields."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from plugwright.apiserver import field_sets
from plugwright.apiserver.field_sets import FieldsV1
from plugwright.apiserver.kinds import LEASES, NAMESPACES
from plugwright.apiserver.registry import ResourcePath, Writer
from plugwright.apiserver.store import Object, Store

LEASE = ResourcePath(LEASES, "kube-node-lease", "n1")
TREES: st.SearchStrategy[FieldsV1] = st.recursive(
    st.just({}),
    lambda inner: st.dictionaries(st.sampled_from(["f:a", "f:b", "f:c"]), inner, max_size=3).flatmap(
        lambda tree: st.sampled_from([tree, {".": {}, **tree}] if tree else [tree])
    ),
    max_leaves=6,
)


class Leases:
    def __init__(self) -> None:
        self.store = Store()
        self.writer = Writer(self.store)
        self._times = (f"2026-11-15T12:00:00.{number:06}Z" for number in count())
        name = LEASE.namespace
        self.writer.create(ResourcePath(NAMESPACES, "", name), {"metadata": {"name": name}}, "test")
        self.writer.create(LEASE, {"metadata": {"name": "n1"}, "spec": self.spec("n1")}, "kubelet")

    def spec(self, holder: str) -> Object:
        return {"holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": next(self._times)}

    def renew(self, times: int = 1, holder: str = "n1", manager: str = "kubelet") -> None:
        for _ in range(times):
            self.writer.change(LEASE, lambda lease: {**lease, "spec": self.spec(holder)}, manager)

    def owned(self) -> dict[str, FieldsV1]:
        entries = self.store.require(LEASE.key)["metadata"]["managedFields"]
        return {entry["manager"]: entry["fieldsV1"] for entry in entries}


def test_the_owners_of_a_leases_fields_are_the_same_after_thousands_of_renewals() -> None:
    leases = Leases()
    created = leases.owned()
    spec: FieldsV1 = {"f:holderIdentity": {}, "f:leaseDurationSeconds": {}, "f:renewTime": {}}
    assert created == {"kubelet": {"f:spec": spec}}
    leases.renew(3_000)
    assert leases.owned() == created


def test_a_field_that_another_manager_writes_belongs_to_it_until_it_is_renewed() -> None:
    leases = Leases()
    created = leases.owned()
    labels: Object = {"labels": {"rack": "7"}}
    leases.writer.change(LEASE, lambda lease: {**lease, "metadata": {**lease["metadata"], **labels}}, "kubectl-label")
    leases.renew(holder="other", manager="kubectl-edit")
    assert leases.owned()["kubectl-edit"] == {"f:spec": {"f:holderIdentity": {}, "f:renewTime": {}}}
    assert leases.owned()["kubelet"] == {"f:spec": {"f:leaseDurationSeconds": {}}}
    leases.renew(100)
    assert leases.owned() == {**created, "kubectl-label": {"f:metadata": {"f:labels": {".": {}, "f:rack": {}}}}}


@given(TREES, TREES)
def test_a_set_contains_another_if_nothing_of_it_is_missing(one: FieldsV1, other: FieldsV1) -> None:
    assert field_sets.contains(one, other) == (field_sets.difference(other, one) is None)
    if field_sets.contains(one, other):
        assert field_sets.union(one, other) == one
