"""The application: authentication, paths, methods, discovery and unexpected errors."""

import itertools
import logging
from collections.abc import AsyncIterator

import httpx2
import pytest
from tests.apiserver.serving import TOKEN, Api, pod, server

from plugwright.apiserver.app import Server, application
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.store import Store

PATHS = [
    "/",
    "/api",
    "/apis",
    "/api/v1",
    "/apis/coordination.k8s.io/v1",
    "/version",
    "/healthz",
    "/livez/ping",
    "/readyz",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/api/v1",
    "/api/v1/pods",
    "/api/v1/nodes/node",
    "/api/v1/nodes/node/status",
    "/api/v1/namespaces/default/pods/p/log",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/nope",
    "/../etc",
    "/api/v1/pods?watch=1",
    "//",
    "/metrics",
]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"]


@pytest.mark.parametrize(
    "authorization", [None, "", TOKEN, "Bearer", "Bearer bad", f"Basic {TOKEN}", "Bearer good\xff"]
)
async def test_no_request_is_served_without_the_token(api: Api, authorization: str | None) -> None:
    del api.client.headers["authorization"]
    headers = [] if authorization is None else [(b"authorization", authorization.encode("latin-1"))]
    for method, path in itertools.product(METHODS, PATHS):
        response = await api.client.request(method, path, headers=headers)
        assert response.status_code == 401, (method, path)
        assert method == "HEAD" or response.json()["reason"] == "Unauthorized"


async def test_a_websocket_without_the_token_is_not_opened(store: Store) -> None:
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message)

    scope = {"type": "websocket", "path": "/api/v1/pods", "headers": [], "query_string": b"", "subprotocols": []}
    await application(server(store))(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.http.response.start", "websocket.http.response.body"]
    assert sent[0]["status"] == 401


@pytest.mark.parametrize(
    "path",
    ["/api/v1/nopes", "/api/v2/pods", "/apis/apps/v1/nopes", "/api/v1/namespaces/default/nodes", "/api/v1/pods/p",
     "/api/v1/nodes/node/log", "/api/v1/namespaces/default/pods/p/nope", "/api/v1/nodes/node/status/x", "/x/y/z"],
)  # fmt: skip
async def test_paths_that_are_not_served_are_not_found(api: Api, path: str) -> None:
    for method in ("GET", "POST"):
        answer = await api(method, path, {})
        assert (answer.code, answer.reason) == (404, "NotFound")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/v1/nodes/node"), ("PUT", "/api/v1/nodes"), ("PATCH", "/api/v1/nodes"), ("OPTIONS", "/api/v1/nodes"),
     ("BREW", "/api/v1/nodes"), ("POST", "/api/v1"), ("GET", "/api/v1/namespaces/default/pods/p/binding"),
     ("DELETE", "/api/v1/nodes/node/status"), ("GET", "/apis/authentication.k8s.io/v1/selfsubjectreviews")],
)  # fmt: skip
async def test_methods_that_a_path_does_not_have_are_not_allowed(api: Api, method: str, path: str) -> None:
    answer = await api(method, path, {})
    assert (answer.code, answer.reason) == (405, "MethodNotAllowed")


async def test_discovery_leads_to_every_kind(api: Api) -> None:
    groups = (await api("GET", "/apis")).body["groups"]
    paths = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    kinds = {resource["kind"] for path in paths for resource in (await api("GET", path)).body["resources"]}
    assert kinds >= {"ConfigMap", "Event", "Lease", "Namespace", "Node", "Pod", "ServiceAccount", "Binding", "Eviction"}


async def test_openapi_has_every_schema_that_it_refers_to(api: Api) -> None:
    for name, link in (await api("GET", "/openapi/v3")).body["paths"].items():
        document = (await api("GET", link["serverRelativeURL"])).body
        schemas = document["components"]["schemas"]
        referred = {text.split('"')[0] for text in str(document).replace("'", '"').split("#/components/schemas/")[1:]}
        assert name
        assert referred <= set(schemas)
    for path in ("/openapi/v4", "/openapi/v3/apis/nope.example/v1"):
        assert (await api("GET", path)).code == 404


async def test_an_unexpected_exception_is_an_internal_error_and_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def read_log(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
            raise ZeroDivisionError(f"secret of {namespace}")

    app = application(Server(store, Broken(), TOKEN))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        api = Api(client)
        await api("POST", "/api/v1/namespaces/default/pods", pod("p", nodeName="node"))
        with caplog.at_level(logging.ERROR):
            answer = await api("GET", "/api/v1/namespaces/default/pods/p/log")
    assert (answer.code, answer.reason) == (500, "InternalError")
    assert "secret" not in answer.body["message"]
    assert "request failed" in caplog.messages


@pytest.mark.parametrize(
    ("group", "plural", "kind"),
    [("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
     ("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
     ("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview")],
)  # fmt: skip
async def test_the_holder_of_the_token_may_do_everything(api: Api, group: str, plural: str, kind: str) -> None:
    path = f"/apis/{group}/v1/{plural}"
    answer = await api("POST", path, {"kind": kind, "spec": {}})
    assert (answer.code, answer.body["kind"]) == (201, kind)
    assert answer.body["status"]
    assert (await api("POST", path, {"kind": "Pod"})).code == 400
    assert (await api("POST", path, {"kind": kind, "spec": []})).code == 400


@pytest.mark.parametrize("header", ["impersonate-user", "impersonate-group", "impersonate-extra-scopes"])
async def test_impersonation_is_refused_and_not_ignored(api: Api, header: str) -> None:
    response = await api.client.request("DELETE", "/api/v1/nodes/node", headers={header: "nobody"})
    assert (response.status_code, response.json()["reason"]) == (403, "Forbidden")
    assert f"plugwright does not emulate impersonation (header {header})" in response.json()["message"]
    assert (await api("GET", "/api/v1/nodes/node")).code == 200
