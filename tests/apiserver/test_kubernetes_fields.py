"""Random objects as Kubernetes' own types in Go wrote them, as JSON and as protobuf: read and written byte for byte.

`tests/kubernetes/test_kubernetes_types.py` makes them, and checks many more.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from plugwright.apiserver import kubernetes_fields, kubernetes_objects

OBJECTS = Path(__file__).parent / "go_objects.txt"  # a type and its JSON, then its bytes in base64
API_GROUPS = {"core": "v1", "meta": "v1", "policy": "policy/v1"}


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def check(line: str, content: str) -> None:
    """That the object is read from its bytes, and its bytes are written from it."""
    name, _, document = line.partition(" ")
    group, _, kind = name.partition(".")
    type_meta = {"kind": kind, "apiVersion": API_GROUPS.get(group, f"{group}.k8s.io/v1")}
    expected = {**without_nulls(json.loads(document)), **type_meta}
    written = kubernetes_objects.encode(expected)
    assert base64.b64decode(content) in written, name
    assert without_nulls(kubernetes_objects.decode(written)) == expected


def test_the_objects_of_go_are_read_and_written_byte_for_byte() -> None:
    lines = OBJECTS.read_text().splitlines()
    assert len(lines) > 20
    for line, content in zip(lines[::2], lines[1::2], strict=True):
        check(line, content)


@pytest.mark.parametrize(
    ("kind", "path", "patch_key", "apply_keys"),
    [
        ("Node", "spec.taints", None, ()),
        ("Node", "spec.podCIDRs", "", ()),
        ("Node", "status.conditions", "type", ("type",)),
        ("Pod", "spec.containers.ports", "containerPort", ("containerPort", "protocol")),
        ("Pod", "spec.ephemeralContainers.env", "name", ("name",)),
        ("Pod", "spec.schedulingGates", "name", ("name",)),
        ("Pod", "spec.tolerations", None, ()),
        ("Pod", "status.resourceClaimStatuses", "name", ("name",)),
        ("ServiceAccount", "imagePullSecrets", None, ()),
        ("ServiceAccount", "secrets", "name", ("name",)),
    ],
)
def test_a_list_says_how_it_is_merged(kind: str, path: str, patch_key: str | None, apply_keys: tuple[str, ...]) -> None:
    found, field = kubernetes_fields.object_type("v1", kind), None
    for step in path.split("."):
        assert found
        field = found.member(step)
        assert field
        found = kubernetes_fields.inner_type(field) if field.is_message else None
    assert field
    assert (field.patch_key, field.apply_keys) == (patch_key, apply_keys)
