"""Secrets and config maps: what each type must have, sizes, and what is immutable."""

import base64
from typing import Any

import pytest
from tests.apiserver.serving import Api, Json

SECRETS, MAPS = "/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/configmaps"


def encoded(**values: str) -> dict[str, str]:
    return {key.replace("_", "."): base64.b64encode(value.encode()).decode() for key, value in values.items()}


def secret(name: str = "s", **members: object) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, **members}


async def test_string_data_becomes_data(api: Api) -> None:
    created = await api("POST", SECRETS, secret(data=encoded(a="1", b="2"), stringData={"b": "grün"}))
    assert created.code == 201, created.body
    assert (created.body["type"], created.body["data"]) == ("Opaque", encoded(a="1", b="grün"))
    assert "stringData" not in created.body
    patched = await api.patch(f"{SECRETS}/s", {"stringData": {"c": "3"}})
    assert patched.body["data"] == encoded(a="1", b="grün", c="3")


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"type": "kubernetes.io/tls", "data": encoded(tls_crt="x")}, "data[tls.key]"),
        ({"type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": ""}}, "data[ssh-privatekey]"),
        ({"type": "kubernetes.io/basic-auth"}, "data[username]"),
        ({"type": "kubernetes.io/dockercfg"}, "data[.dockercfg]"),
        (
            {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "["}},
            "data[.dockerconfigjson]",
        ),
        ({"type": "kubernetes.io/service-account-token"}, "metadata.annotations[kubernetes.io/service-account.name]"),
        ({"stringData": {"a/b": ""}}, "data[a/b]"),
        ({"stringData": {"..": ""}}, "data[..]"),
        ({"stringData": {"a": "x" * (1024 * 1024 + 1)}}, "data"),
    ],
)
async def test_an_invalid_secret_is_refused(api: Api, members: Json, field: str) -> None:
    refused = await api("POST", SECRETS, secret(**members))
    assert (refused.code, refused.reason) == (422, "Invalid")
    assert refused.body["details"]["causes"][0]["field"] == field


@pytest.mark.parametrize(
    "members",
    [
        {"type": "kubernetes.io/basic-auth", "stringData": {"password": ""}},
        {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}},
        {"type": "helm.sh/release.v1", "stringData": {"release": "x"}},
        {"stringData": {"a": "x" * (1024 * 1024)}},
    ],
)
async def test_a_valid_secret_is_stored(api: Api, members: Json) -> None:
    assert (await api("POST", SECRETS, secret(**members))).code == 201


async def test_a_value_that_is_not_in_base64_is_a_bad_request(api: Api) -> None:
    refused = await api("POST", SECRETS, secret(data={"a": "ab!="}))
    assert (refused.code, refused.body["message"].rpartition(": ")[2]) == (400, "illegal base64 data at input byte 2")


async def test_a_certificate_that_is_none_is_warned_of(api: Api) -> None:
    data = encoded(tls_crt="x", tls_key="y")
    created = await api("POST", SECRETS, secret(type="kubernetes.io/tls", data=data))
    assert created.code == 201
    assert "failed to find any PEM data in certificate input" in created.headers["warning"]


async def test_a_secret_keeps_its_type_and_is_selected_by_it(api: Api) -> None:
    await api("POST", SECRETS, secret(type="a/b"))
    await api("POST", SECRETS, secret("other"))
    assert (await api("GET", f"{SECRETS}?fieldSelector=type=a/b")).names == ["s"]
    refused = await api.patch(f"{SECRETS}/s", {"type": "c/d"})
    assert 'type: Invalid value: "c/d": field is immutable' in refused.body["message"]
    assert (await api("PUT", f"{SECRETS}/s", secret())).body["type"] == "a/b"


@pytest.mark.parametrize(("path", "data"), [(SECRETS, encoded(a="1")), (MAPS, {"a": "1"})], ids=["secret", "map"])
async def test_what_is_immutable_stays_as_it_is(api: Api, path: str, data: Any) -> None:
    await api("POST", path, {"metadata": {"name": "s"}, "data": data, "immutable": True})
    for patch in ({"immutable": False}, {"data": {"a": None}}):
        refused = await api.patch(f"{path}/s", patch)
        assert (refused.code, refused.reason) == (422, "Invalid")
        assert "Forbidden: field is immutable when `immutable` is set" in refused.body["message"]
    assert (await api.patch(f"{path}/s", {"metadata": {"labels": {"a": "b"}}})).code == 200


@pytest.mark.parametrize(
    "members",
    [
        {"data": {"a": "x" * (1024 * 1024)}, "binaryData": {"b": "eA=="}},
        {"data": {"a": ""}, "binaryData": {"a": ""}},
        {"data": {"a b": ""}},
    ],
)
async def test_an_invalid_config_map_is_refused(api: Api, members: Json) -> None:
    assert (await api("POST", MAPS, {"metadata": {"name": "m"}, **members})).code == 422
