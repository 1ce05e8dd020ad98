"""Bodies of requests: JSON, YAML and protobuf, and the Status that refuses others."""

import base64
from collections.abc import MutableMapping

import pytest
from tests.apiserver.serving import TOKEN, Api, pod, populated, server

from plugwright.apiserver import requests
from plugwright.apiserver.app import application
from plugwright.apiserver.store import Store

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
PROTOBUF = "application/vnd.kubernetes.protobuf"
# `kubectl create configmap m --from-literal=a=b`, as kubectl 1.36 sends it
CONFIG_MAP = base64.b64decode("azhzAAoPCgJ2MRIJQ29uZmlnTWFwEhsKEQoBbRIAGgAiACoAMgA4AEIAEgYKAWESAWIaACIA")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "unrecognized"),
        (b"\xff\xfe", "unrecognized"),
        (b'{"a": NaN}', "unrecognized"),
        (b"[" * 100_000, "unrecognized"),
        (b'{"a":' * 150 + b"{}" + b"}" * 150, 'unknown field "a"'),
        (b'{"a":' * 300 + b"{}" + b"}" * 300, "nested deeper"),
        (b"[]", "the body must be an object of kind Pod"),
        (b"null", "the body must be an object of kind Pod"),
        (b'"Pod"', "the body must be an object of kind Pod"),
        (b'{"metadata": []}', "cannot unmarshal array into Go struct field Pod.metadata of type v1.ObjectMeta"),
        (
            b'{"metadata": {"labels": {"a": 1}}}',
            "unmarshal number into Go struct field ObjectMeta.metadata.labels",
        ),
        (b'{"spec": {"containers": "x"}}', "cannot unmarshal string into Go struct field PodSpec.spec.containers"),
        (b'{"spec": {"containers": [null]}}', "cannot unmarshal null"),
        (b'{"metadata": {"creationTimestamp": "soon"}}', 'parsing time "soon" as'),
        (b'{"status": {"startTime": "2026-13-01T00:00:00Z"}}', "parsing time"),
        (b'{"spec": {"priority": 9223372036854775808}}', "cannot unmarshal number"),
        (b'{"spec": {"nodeSelector": {"a": {}}}}', "of type string"),
        (b'{"spec": {"priority": true}}', "cannot unmarshal bool"),
        (b'{"kind": "Node", "metadata": {"name": "p"}}', "does not match the expected API version"),
        (b'{"apiVersion": "v2", "metadata": {"name": "p"}}', "does not match the expected API version"),
    ],
)
async def test_a_body_that_is_not_a_pod_is_a_bad_request(api: Api, body: bytes, words: str) -> None:
    answer = await api("POST", f"{PODS}?fieldValidation=Strict", body)
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert words in answer.body["message"]


@pytest.mark.parametrize("media", ["text/plain", "application/xml", "application/x-www-form-urlencoded", "nonsense"])
async def test_an_unknown_content_type_is_an_unsupported_media_type(api: Api, media: str) -> None:
    for method, path in (("POST", PODS), ("PUT", f"{PODS}/p"), ("PATCH", f"{PODS}/p")):
        answer = await api(method, path, pod("p"), content_type=media)
        assert (answer.code, answer.reason) == (415, "UnsupportedMediaType")


async def test_plain_json_is_not_accepted_as_a_patch(api: Api) -> None:
    assert (await api("PATCH", f"{PODS}/p", {}, content_type="application/json")).code == 415


async def test_a_body_that_is_too_large_is_refused(api: Api) -> None:
    answer = await api("POST", MAPS, b" " * (requests.LARGEST_BODY + 1))
    assert (answer.code, answer.reason) == (413, "RequestEntityTooLarge")


async def test_the_largest_body_is_read(api: Api) -> None:
    assert (await api("POST", MAPS, b'{"metadata": {"name": "m"}}'.ljust(requests.LARGEST_BODY))).code == 201


class TestYaml:
    async def post(self, api: Api, text: str) -> tuple[int, str]:
        answer = await api("POST", MAPS, text.encode(), content_type="application/yaml")
        return answer.code, answer.body.get("message", "")

    async def test_is_read(self, api: Api) -> None:
        text = 'metadata: {name: m, annotations: {when: 2026-01-01}}\ndata: {a: "1"}\n'
        assert await self.post(api, text) == (201, "")
        assert (await api("GET", f"{MAPS}/m")).body["metadata"]["annotations"] == {"when": "2026-01-01"}

    async def test_with_aliases_is_refused(self, api: Api) -> None:
        levels = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))
        code, message = await self.post(api, f"a0: &a0 [x]\n{levels}\n")
        assert (code, "aliases are not supported" in message) == (400, True)

    @pytest.mark.parametrize("text", ["a: [", "!!python/object:os.system {}", "? [a]\n: b", "- a", "\x00"])
    async def test_that_is_not_an_object_is_refused(self, api: Api, text: str) -> None:
        assert (await self.post(api, text))[0] == 400


class TestProtobuf:
    async def test_sent_by_kubectl_is_read(self, api: Api) -> None:
        answer = await api("POST", MAPS, CONFIG_MAP, content_type=PROTOBUF)
        assert (answer.code, answer.body["data"]) == (201, {"a": "b"})

    async def test_of_other_kinds_is_refused(self, api: Api) -> None:
        answer = await api("POST", PODS, CONFIG_MAP.replace(b"ConfigMap", b"PodNoMore"), content_type=PROTOBUF)
        assert (answer.code, answer.reason) == (415, "UnsupportedMediaType")

    @pytest.mark.parametrize("content", [b"k8s", b"nope", CONFIG_MAP[:20], CONFIG_MAP[4:], b"k8s\x00\xff\xff"])
    async def test_that_cannot_be_decoded_is_refused(self, api: Api, content: bytes) -> None:
        assert (await api("POST", MAPS, content, content_type=PROTOBUF)).code == 400


async def test_a_client_that_goes_away_within_its_body_is_no_error_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    sent: list[MutableMapping[str, object]] = []

    async def send(message: MutableMapping[str, object]) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {TOKEN}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": PODS, "query_string": b"", "headers": headers}
    await application(server(populated(Store())))(scope, receive, send)
    assert sent[0]["status"] == 400
    assert not caplog.records
