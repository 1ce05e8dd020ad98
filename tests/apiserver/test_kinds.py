"""The kinds: every strategy is complete, and generic code follows it."""

from typing import Any

import pytest
from tests.apiserver.serving import Api, Json

from plugwright.apiserver import RELEASES, kubernetes_objects, schema
from plugwright.apiserver.kinds import KINDS, Kind

NEWEST = max(RELEASES.values())


def example(schemas: Json, found: Json) -> Any:
    """A value of an OpenAPI type, with all its members."""
    if "$ref" in found:
        found = schemas[found["$ref"].rpartition("/")[2]]
    match found.get("type"):
        case "object" if "properties" in found:
            hidden = {"bool": True, "bools": [True]}  # in lightkube's model the attribute `bool` hides that type
            properties = found["properties"].items()
            return {name: hidden.get(name) or example(schemas, inner) for name, inner in properties}
        case "object":
            return {"key": example(schemas, found["additionalProperties"])}
        case "array":
            return [example(schemas, found["items"])]
        case "string":
            return "2026-11-16T12:00:00Z" if found.get("format") == "date-time" else "abcd"
        case "boolean":
            return True
    return 7


def members(value: object) -> object:
    """The names in a document."""
    if isinstance(value, dict):
        return {name: members(inner) for name, inner in value.items()}
    return [members(item) for item in value] if isinstance(value, list) else None


@pytest.fixture
def release() -> str:
    return NEWEST


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
class TestEveryKind:
    def test_has_a_schema_with_metadata(self, kind: Kind) -> None:
        assert schema.unknown_fields(kind, {"metadata": {}, "nope": 1}) == ["nope"]

    def test_has_every_field_of_its_schema_in_protobuf(self, kind: Kind) -> None:
        schemas = schema.openapi(kind.group, kind.version, NEWEST)["components"]["schemas"]
        (name,) = (
            name
            for name, found in schemas.items()
            if "x-kubernetes-group-version-kind" in found and name.endswith(f".{kind.name}")
        )
        document = {**example(schemas, schemas[name]), "kind": kind.name, "apiVersion": kind.api_version}
        decoded = kubernetes_objects.decode(kubernetes_objects.encode(document))
        assert members(decoded) == members(document)

    async def test_is_listed_as_a_table_with_its_columns(self, api: Api, kind: Kind) -> None:
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        table = (await api("GET", f"{kind.root}/{kind.plural}", accept=accept)).body
        assert [column["name"] for column in table["columnDefinitions"]] == [column.name for column in kind.columns]

    async def test_is_selected_by_its_own_fields_alone(self, api: Api, kind: Kind) -> None:
        fields = {"metadata.name"}.union(*(kind.selectable_fields for kind in KINDS))
        for field in fields:
            code = (await api("GET", f"{kind.root}/{kind.plural}?fieldSelector={field}=x")).code
            assert code == (200 if field in kind.selectable_fields | {"metadata.name"} else 400), field
