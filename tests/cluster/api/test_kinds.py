"""The kinds: every strategy is complete, and generic code follows it."""

import pytest
from tests.cluster.api.serving import Api

from plugwright.cluster.api import schema
from plugwright.cluster.api.kinds import KINDS, Kind
from plugwright.protocol.apimachinery.v1 import apimachinery_pb2
from plugwright.protocol.resourceapi.v1 import resourceapi_pb2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
class TestEveryKind:
    def test_has_a_schema_with_metadata(self, kind: Kind) -> None:
        assert schema.unknown_fields(kind, {"metadata": {}, "nope": 1}) == ["nope"]

    def test_has_a_protobuf_message_if_it_is_accepted_so(self, kind: Kind) -> None:
        # Of a node only what drivers read has a message, so that none is accepted: what it lacks would be lost.
        is_whole = hasattr(resourceapi_pb2, kind.name) and kind.name != "Node"
        assert kind.protobuf == (hasattr(apimachinery_pb2, kind.name) or is_whole)

    async def test_is_listed_as_a_table_with_its_columns(self, api: Api, kind: Kind) -> None:
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        table = (await api("GET", f"{kind.root}/{kind.plural}", accept=accept)).body
        assert [column["name"] for column in table["columnDefinitions"]] == [column.name for column in kind.columns]

    async def test_is_selected_by_its_own_fields_alone(self, api: Api, kind: Kind) -> None:
        fields = {"metadata.name"}.union(*(kind.selectable_fields for kind in KINDS))
        for field in fields:
            code = (await api("GET", f"{kind.root}/{kind.plural}?fieldSelector={field}=x")).code
            assert code == (200 if field in kind.selectable_fields | {"metadata.name"} else 400), field
