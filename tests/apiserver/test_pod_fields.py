"""Every field of a pod's spec is known to be emulated or not, and docs/cluster-limits.md says so.

PLUGWRIGHT_REWRITE_LIMITS=1 writes the page's tables again.
"""

import os
from pathlib import Path

import msgspec
import pytest
from lightkube.models import core_v1
from tests.cluster.pods_and_nodes import pod_object

from plugwright.apiserver import pod_fields
from plugwright.apiserver.pod_fields import POD_FIELDS, Treatment

PAGE = Path(__file__).parents[2] / "docs" / "cluster-limits.md"
BEFORE_TABLES = "`containers` means init containers too.\n\n"
EXPANDED = {  # fields that are described by their parts: the type of the part, and the fields that say nothing alone
    "": (core_v1.PodSpec, {"containers", "initContainers", "affinity", "volumes"}),
    "containers.": (core_v1.Container, set()),
    "containers.env.valueFrom.": (core_v1.EnvVarSource, set()),
    "affinity.": (core_v1.Affinity, set()),
    "volumes.": (core_v1.Volume, {"name"}),
}
ADVICE = "use `plugwright join` with a real API server"


def names(model: type, but: set[str]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(model)} - but


def test_every_field_of_kubernetes_is_in_the_table_once() -> None:
    expected = [prefix + name for prefix, (model, but) in EXPANDED.items() for name in names(model, but)]
    assert sorted(field.path for field in POD_FIELDS) == sorted(expected)


def test_the_page_has_the_table() -> None:
    before, heading, tables = PAGE.read_text().partition(BEFORE_TABLES)
    if os.environ.get("PLUGWRIGHT_REWRITE_LIMITS"):
        PAGE.write_text(before + heading + pod_fields.fields_page())
        return
    assert tables == pod_fields.fields_page()


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"schedulingGroup": {"podGroupName": "g"}}, "schedulingGroup"),
        ({"volumes": [{"name": "a", "image": {"reference": "r"}}]}, "volumes.image"),
        ({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "csi": {"driver": "d"}}]}, "volumes.csi"),
        (
            {"initContainers": [{"name": "i", "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k"}}}]}]},
            "containers.env.valueFrom.fileKeyRef",
        ),
    ],
)
def test_what_is_not_emulated_is_named(spec: dict[str, object], named: str) -> None:
    written = pod_object("p", None, **spec)["spec"]
    assert pod_fields.not_emulated(written) == f"plugwright does not emulate {named}; {ADVICE}"


@pytest.mark.parametrize(
    "spec", [{}, {"schedulingGroup": {}}, {"volumes": [{"name": "a", "emptyDir": {}}]}, {"hostNetwork": True}]
)
def test_a_pod_that_asks_for_nothing_special_is_emulated(spec: dict[str, object]) -> None:
    assert pod_fields.not_emulated(pod_object("p", None, **spec)["spec"]) == ""


def test_every_treatment_is_used() -> None:
    assert {field.treatment for field in POD_FIELDS} == set(Treatment)
