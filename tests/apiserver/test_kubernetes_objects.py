"""Protobuf bodies, byte for byte as kubectl and the helper for DRA drivers, both of 1.36, send them."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.apiserver import kubernetes_objects
from plugwright.errors import MalformedMessage, UnknownKind
from plugwright.protocol import wire_format

NAMESPACE = base64.b64decode("azhzAAoPCgJ2MRIJTmFtZXNwYWNlEhkKEQoBbRIAGgAiACoAMgA4AEIAEgAaAgoAGgAiAA==")
CONFIG_MAP = base64.b64decode("azhzAAoPCgJ2MRIJQ29uZmlnTWFwEhsKEQoBbRIAGgAiACoAMgA4AEIAEgYKAWESAWIaACIA")

SLICE = base64.b64decode(
    "azhzAAojChJyZXNvdXJjZS5rOHMuaW8vdjESDVJlc291cmNlU2xpY2USyAIKaAoAEhwwMDAwMC1nby5leGFtcGxlLmNvbS1ub2RlLTEtGgAiACoA"
    "MgA4AEIAajoKBE5vZGUaBm5vZGUtMSIkMTNhNzRjNDQtYzMzMS00OGQ1LWJlZWYtNzVmNzk2ZWFiN2QwKgJ2MTABEtsBCg5nby5leGFtcGxlLmNv"
    "bRIMCgZub2RlLTEQARgBGgZub2RlLTEyqQEKBWdwdS0wEgsKBWluZGV4EgIQABIMCgZtZW1vcnkSAhAoEg8KBW1vZGVsEgYiBEExMDASDAoGc3Bh"
    "cnNlEgIYABIWCgd2ZXJzaW9uEgsqCTU3MC44Ni4xNRorCgZtZW1vcnkSIQoGCgQ0MEdpEhcKBQoDMUdpIg4KBQoDMUdpGgUKAzFHaUIfCg9leGFt"
    "cGxlLmNvbS9ob3QSABoKTm9TY2hlZHVsZWABMgcKBWdwdS0xGgAiAA=="
)
SLICE_DOCUMENT: dict[str, Any] = {
    "kind": "ResourceSlice",
    "apiVersion": "resource.k8s.io/v1",
    "metadata": {
        "generateName": "00000-go.example.com-node-1-",
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "name": "node-1",
                "uid": "13a74c44-c331-48d5-beef-75f796eab7d0",
                "controller": True,
            }
        ],
    },
    "spec": {
        "driver": "go.example.com",
        "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {
                    "index": {"int": 0},
                    "memory": {"int": 40},
                    "model": {"string": "A100"},
                    "sparse": {"bool": False},
                    "version": {"version": "570.86.15"},
                },
                "capacity": {
                    "memory": {
                        "value": "40Gi",
                        "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
                    }
                },
                "taints": [{"key": "example.com/hot", "effect": "NoSchedule"}],
                "allowMultipleAllocations": True,
            },
            {"name": "gpu-1"},
        ],
    },
}
CLAIM_DOCUMENT: dict[str, Any] = {
    "kind": "ResourceClaim",
    "apiVersion": "resource.k8s.io/v1",
    "metadata": {
        "name": "one",
        "namespace": "default",
        "uid": "u-1",
        "creationTimestamp": "2026-08-01T12:00:00Z",
        "managedFields": [{"manager": "kubectl", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {
        "devices": {
            "requests": [
                {"name": "gpu", "firstAvailable": [{"name": "big", "deviceClassName": "c", "count": 2}]},
                {"name": "all", "exactly": {"deviceClassName": "c", "allocationMode": "All", "adminAccess": True}},
                {"name": "part", "exactly": {"deviceClassName": "c", "capacity": {"requests": {"memory": "20Gi"}}}},
            ],
            "constraints": [{"requests": ["gpu"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}],
            "config": [{"requests": ["gpu"], "opaque": {"driver": "d", "parameters": {"a": [1, None, "x"]}}}],
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": "gpu/big",
                        "driver": "d",
                        "pool": "p",
                        "device": "gpu-0",
                        "adminAccess": False,
                        "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 0}],
                        "shareID": "s-1",
                        "consumedCapacity": {"memory": "20Gi"},
                    }
                ],
                "config": [{"source": "FromClass", "opaque": {"driver": "d", "parameters": {}}}],
            },
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
                ]
            },
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u-2"}],
        "devices": [
            {
                "driver": "d",
                "pool": "p",
                "device": "gpu-0",
                "shareID": "s-1",
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "lastTransitionTime": "2026-08-01T12:00:00Z",
                        "reason": "",
                        "message": "",
                    }
                ],
                "data": {"x": 1},
                "networkData": {"interfaceName": "eth1", "ips": ["10.0.0.1/24"]},
            }
        ],
    },
}


def decode(content: bytes) -> dict[str, Any]:
    return kubernetes_objects.decode(content)


def test_kubectls_bytes_decode_to_what_it_would_send_as_json() -> None:
    empty: dict[str, Any] = {"spec": {}, "status": {}}  # no pointers in Go, so they are always there
    assert decode(NAMESPACE) == {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "m"}, **empty}
    assert decode(CONFIG_MAP) == {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "m"},
        "data": {"a": "b"},
    }


def test_numbers_and_empty_values_of_maps_are_kept() -> None:
    options = b"k8s\x00\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x02\x08\x05"
    assert decode(options)["gracePeriodSeconds"] == 5
    empty = CONFIG_MAP.replace(b"\x12\x06\x0a\x01a\x12\x01b", b"\x12\x06\x0a\x02ab\x12\x00")
    assert decode(empty)["data"] == {"ab": ""}


def test_a_kind_that_is_not_accepted_is_refused_by_name() -> None:
    with pytest.raises(UnknownKind, match="kind 'Namespack' of 'v1' has no protobuf message"):
        decode(NAMESPACE.replace(b"Namespace", b"Namespack"))


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: CONFIG_MAP[:22] + rest))
def test_random_bytes_are_refused_or_decoded(content: bytes) -> None:
    try:
        decoded = decode(content)
    except MalformedMessage:
        return
    assert decoded["kind"] in ("ConfigMap", "Namespace")


def test_the_helpers_bytes_decode_to_the_slice_with_its_zeros() -> None:
    assert decode(SLICE) == SLICE_DOCUMENT


@pytest.mark.parametrize("document", [SLICE_DOCUMENT, CLAIM_DOCUMENT], ids=["slice", "claim"])
def test_what_is_written_is_read_again(document: dict[str, Any]) -> None:
    assert decode(kubernetes_objects.encode(document)) == document


def test_a_list_and_the_frame_of_a_watch_have_their_envelopes() -> None:
    listed = {
        "kind": "ResourceSliceList",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"resourceVersion": "7"},
        "items": [{key: part for key, part in SLICE_DOCUMENT.items() if key in ("metadata", "spec")}],
    }
    assert kubernetes_objects.decode(kubernetes_objects.encode(listed)) == listed
    frame = kubernetes_objects.watch_frame("ADDED", SLICE_DOCUMENT)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    event = wire_format.read(frame[4:])
    (content,) = (wire_format.message(event, 2) or {})[1]
    assert isinstance(content, bytes)
    assert (wire_format.text(event, 1), decode(content)) == ("ADDED", SLICE_DOCUMENT)


def test_a_kind_without_a_message_is_not_written() -> None:
    with pytest.raises(UnknownKind, match="kind 'StatefulSet' of 'apps/v1' has no protobuf message"):
        kubernetes_objects.encode({"kind": "StatefulSet", "apiVersion": "apps/v1"})


UNKNOWN_FIELD = b"\xf8\x3f\x07"  # number 1023, the integer 7
FIXED_FIELD = b"\xf9\x3f" + bytes(8)


@pytest.mark.parametrize("extra", [UNKNOWN_FIELD, FIXED_FIELD], ids=["number", "fixed"])
def test_a_field_that_the_table_does_not_have_is_an_error(extra: bytes) -> None:
    envelope = wire_format.read(CONFIG_MAP[4:])
    (raw,) = envelope[2]
    assert isinstance(raw, bytes)
    content = CONFIG_MAP.replace(wire_format.write(2, raw), wire_format.write(2, raw + extra))
    with pytest.raises(MalformedMessage, match=r"field 1023 of core\.ConfigMap is not known here, and would be lost"):
        decode(content)


def test_a_member_that_the_table_does_not_have_is_not_written() -> None:
    pod = {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": [{"name": "a", "colour": "red"}]}}
    with pytest.raises(MalformedMessage, match=r"core\.Container has no field 'colour', which would be lost"):
        kubernetes_objects.encode(pod)


@pytest.mark.parametrize("value", [True, "7", 1.5, {}])
def test_a_number_that_is_none_is_not_written(value: object) -> None:
    pod = {"kind": "Pod", "apiVersion": "v1", "spec": {"activeDeadlineSeconds": value}}
    with pytest.raises(MalformedMessage, match="activeDeadlineSeconds must be of type int64"):
        kubernetes_objects.encode(pod)


@given(st.integers(0, len(SLICE)), st.integers(0, 255))
def test_a_damaged_slice_is_refused_or_decoded(position: int, byte: int) -> None:
    damaged = SLICE[:position] + bytes([byte]) + SLICE[position + 1 :]
    try:
        decoded = decode(damaged)
    except MalformedMessage:
        return
    assert decoded["kind"] == "ResourceSlice"
