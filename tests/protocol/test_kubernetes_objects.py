"""Protobuf bodies, byte for byte as kubectl 1.36 sends them."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.errors import MalformedMessage
from plugwright.protocol import kubernetes_objects

NAMESPACE = base64.b64decode("azhzAAoPCgJ2MRIJTmFtZXNwYWNlEhkKEQoBbRIAGgAiACoAMgA4AEIAEgAaAgoAGgAiAA==")
CONFIG_MAP = base64.b64decode("azhzAAoPCgJ2MRIJQ29uZmlnTWFwEhsKEQoBbRIAGgAiACoAMgA4AEIAEgYKAWESAWIaACIA")

KINDS = {"ConfigMap", "Namespace", *kubernetes_objects.REQUEST_KINDS}


def decode(content: bytes) -> dict[str, Any]:
    return kubernetes_objects.decode(content, KINDS)


def test_kubectls_bytes_decode_to_what_it_would_send_as_json() -> None:
    assert decode(NAMESPACE) == {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "m"}}
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
    with pytest.raises(kubernetes_objects.UnknownKind, match="kind 'Namespack' is not accepted as protobuf"):
        decode(NAMESPACE.replace(b"Namespace", b"Namespack"))


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: CONFIG_MAP[:22] + rest))
def test_random_bytes_are_refused_or_decoded(content: bytes) -> None:
    try:
        decoded = decode(content)
    except MalformedMessage:
        return
    assert decoded["kind"] in ("ConfigMap", "Namespace")
