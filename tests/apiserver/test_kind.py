"""A kind is checked when it is made."""

import pytest

from plugwright.apiserver.kinds import KINDS, Kind


def test_a_kind_without_fields_in_the_table_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        LookupError, match=r"no RuntimeClass of node.k8s.io/v1: add its Go type to `roots` in .*main.go"
    ):
        Kind("runtimeclasses", "RuntimeClass", "node.k8s.io", namespaced=False)


def test_a_kind_without_the_fields_of_its_list_is_refused() -> None:
    with pytest.raises(LookupError, match="no BindingList of v1"):
        Kind("bindings", "Binding")


def test_every_kind_has_its_fields() -> None:
    assert all(kind.object_type.fields for kind in KINDS)
