"""The ASGI application: every request is authenticated, read, done and answered here.

Rules about objects are `writing`'s; what a path means is `requests`'.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from plugwright.cluster import clock, patching
from plugwright.cluster.api import discovery, requests, schema, selectors, tables, watching
from plugwright.cluster.api.errors import (
    Refused,
    bad_request,
    from_store,
    not_found,
    status_object,
    unsupported_media,
)
from plugwright.cluster.api.kinds import KINDS
from plugwright.cluster.api.requests import BODY_LIMIT, Target
from plugwright.cluster.api.writing import Deletion, Place, Writer
from plugwright.cluster.clock import Clock
from plugwright.cluster.patching import PatchFailed
from plugwright.cluster.store import Object, Store
from plugwright.errors import ClusterError

__all__ = ["Logs", "Server", "application"]

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
_PATCHES: dict[str, Callable[[Any, Any], Any]] = {  # type: ignore[explicit-any,unused-ignore]
    "application/json-patch+json": patching.json_patch,
    "application/merge-patch+json": patching.merge_patch,
    "application/strategic-merge-patch+json": patching.strategic_merge,
}
_APPLY = "application/apply-patch+yaml"


class Logs(Protocol):
    """Who knows what containers have written."""

    def log(self, namespace: str, pod: str, container: str) -> str: ...


@dataclass(frozen=True)
class Server:
    """What the application serves, and for whom."""

    store: Store
    logs: Logs
    token: str = field(repr=False)
    release: str = "1.36.4"
    now: Clock = clock.now


def application(server: Server) -> Starlette:
    return Starlette(routes=[Route("/{path:path}", _Handler(server), methods=_METHODS)])


class _Handler:
    """One endpoint for all paths: which object is meant is known only after looking at the kinds."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._store = server.store
        self._writer = Writer(server.store, server.now)
        self._documents = discovery.documents(server.release)
        self._verbs: dict[str, Callable[[Request, Target], Awaitable[Response]]] = {
            "GET": self._get,
            "HEAD": self._get,
            "POST": self._post,
            "PUT": self._put,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # type: ignore[explicit-any,unused-ignore]
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Refused as refused:
            response = _refusal(refused)
        except PatchFailed as error:
            response = _refusal(
                Refused(422, "Invalid", f"the server rejected our request due to an error in our request: {error}")
            )
        except ClusterError as error:
            response = _refusal(from_store(error))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        self._authenticate(request)
        path = request.url.path.rstrip("/") or "/"
        if path in ("/healthz", "/livez", "/readyz"):
            return Response("ok")
        if path in self._documents:
            return _json(self._documents[path])
        if path.startswith("/openapi/v3"):
            return _openapi(path)
        target = requests.resolve(path)
        verb = self._verbs.get(request.method)
        if verb is None:
            raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        if request.query_params.get("dryRun"):
            raise bad_request("dryRun is not served by the embedded cluster")
        return await verb(request, target)

    def _authenticate(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "replace")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._server.token.encode()):
            raise Refused(401, "Unauthorized", "Unauthorized")

    async def _get(self, request: Request, target: Target) -> Response:
        if target.subresource == "log":
            return self._log(request, target)
        if target.name:
            found = self._store.take(_place(target).key)
            return self._shown(request, target, [found]) if _wants_table(request) else _json(found)
        query = request.query_params
        selector = _selector(query)
        if query.get("watch") in ("1", "true"):
            return self._watch(request, target, selector)
        items = [each for each in self._store.every(target.kind.qualified, target.namespace) if selector(each)]
        return self._shown(request, target, items) if _wants_table(request) else self._list(target, items)

    def _list(self, target: Target, items: list[Object]) -> Response:
        return _json(
            {
                "kind": f"{target.kind.name}List",
                "apiVersion": target.kind.api_version,
                "metadata": {"resourceVersion": str(self._store.revision)},
                "items": items,
            }
        )

    def _shown(self, request: Request, target: Target, items: list[Object]) -> Response:
        include = request.query_params.get("includeObject", "Metadata")
        shown = tables.table(target.kind, items, self._server.now(), include)
        return _json({**shown, "metadata": {"resourceVersion": str(self._store.revision)}})

    def _watch(self, request: Request, target: Target, selector: selectors.Selector) -> Response:
        query = request.query_params
        if query.get("sendInitialEvents"):
            raise Refused(
                422, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            )
        include, as_table = query.get("includeObject", "Metadata"), _wants_table(request)

        def shown(found: Object) -> Object:
            return tables.table(target.kind, [found], self._server.now(), include) if as_table else found

        empty = {"kind": target.kind.name, "apiVersion": target.kind.api_version}
        watch = watching.Watch(
            target.kind.qualified,
            target.namespace,
            selectors_with_name(selector, target),
            shown,
            empty if query.get("allowWatchBookmarks") in ("1", "true") and not as_table else None,
            requests.number(query, "timeoutSeconds"),
        )
        since = requests.number(query, "resourceVersion") or None
        return StreamingResponse(watching.lines(self._store, watch, since), media_type="application/json")

    def _log(self, request: Request, target: Target) -> Response:
        pod = self._store.take(Place(target.kind, target.namespace, target.name).key)
        names = [each["name"] for part in ("containers", "initContainers") for each in pod["spec"].get(part) or []]
        container = request.query_params.get("container") or names[0]
        if container not in names:
            raise bad_request(f"container {container} is not valid for pod {target.name}")
        return Response(self._server.logs.log(target.namespace, target.name, container), media_type="text/plain")

    async def _post(self, request: Request, target: Target) -> Response:
        content = await _body(request)
        if target.subresource == "binding" or (
            not target.name and isinstance(content, dict) and content.get("kind") == "Binding"
        ):
            return self._bind(target, content)
        if target.subresource == "eviction":
            options = content.get("deleteOptions") if isinstance(content, dict) else {}
            self._writer.delete(Place(target.kind, target.namespace, target.name), requests.deletion(options, {}))
            return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)
        if target.name:
            raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        content, warnings = requests.checked(target.kind, content, _validation(request))
        created = self._writer.create(_place(target), content, _manager(request))
        return self._written(request, target, created, 201, warnings)

    def _bind(self, target: Target, content: Any) -> Response:  # type: ignore[explicit-any,unused-ignore]
        node = (content.get("target") or {}).get("name") if isinstance(content, dict) else None
        if not node:
            raise bad_request("a binding has a target with a name")
        self._writer.bind(Place(target.kind, target.namespace, target.name), str(node))
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)

    async def _put(self, request: Request, target: Target) -> Response:
        content, warnings = requests.checked(target.kind, await _body(request), _validation(request))
        updated = self._writer.update(_named(target), content, _manager(request))
        return self._written(request, target, updated, 200, warnings)

    async def _patch(self, request: Request, target: Target) -> Response:
        media = request.headers.get("content-type", "").partition(";")[0].strip()
        if media == _APPLY:
            text = "server-side apply is not served by the embedded cluster; use client-side apply (kubectl apply)"
            raise Refused(415, "UnsupportedMediaType", text)
        if media not in _PATCHES:
            raise unsupported_media(media, sorted(_PATCHES))
        patch, warnings = await _body(request), list[str]()

        def changed(before: Object) -> Object:
            after, told = requests.checked(target.kind, _PATCHES[media](before, patch), _validation(request))
            warnings.extend(told)
            return after

        updated = self._writer.change(_named(target), changed, _manager(request))
        return self._written(request, target, updated, 200, warnings)

    async def _delete(self, request: Request, target: Target) -> Response:
        options = requests.deletion(await _body(request), request.query_params)
        if not target.name:
            return self._delete_all(request, target, options)
        found, gone = self._writer.delete(_named(target), options)
        if target.kind.name == "Pod" or not gone:
            return _json(found)
        details = {"name": target.name, "kind": target.kind.plural, "uid": found["metadata"]["uid"]}
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})

    def _delete_all(self, request: Request, target: Target, options: Deletion) -> Response:
        selector = _selector(request.query_params)
        items = [each for each in self._store.every(target.kind.qualified, target.namespace) if selector(each)]
        for each in items:
            metadata = each["metadata"]
            self._writer.delete(Place(target.kind, metadata.get("namespace", ""), metadata["name"]), options)
        return self._list(target, items)

    def _written(self, request: Request, target: Target, found: Object, code: int, warnings: list[str]) -> Response:
        response = self._shown(request, target, [found]) if _wants_table(request) else _json(found, code)
        response.status_code = code
        for warning in warnings:
            response.headers.append("warning", f'299 - "{warning.replace(chr(34), chr(92) + chr(34))}"')
        return response


def selectors_with_name(selector: selectors.Selector, target: Target) -> selectors.Selector:
    """Watching one object by its own path."""
    if not target.name:
        return selector
    return lambda found: found["metadata"]["name"] == target.name and selector(found)


def _place(target: Target) -> Place:
    if target.subresource not in ("", "status"):
        raise not_found()
    return Place(target.kind, target.namespace, target.name, target.subresource)


def _named(target: Target) -> Place:
    if not target.name:
        raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    return _place(target)


def _selector(query: Mapping[str, str]) -> selectors.Selector:
    by_label = selectors.labels(query.get("labelSelector", ""))
    by_field = selectors.fields(query.get("fieldSelector", ""))
    return lambda found: by_label(found) and by_field(found)


async def _body(request: Request) -> Any:  # type: ignore[explicit-any,unused-ignore]
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > BODY_LIMIT:
            raise Refused(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_LIMIT}")
    return requests.body(bytes(content), request.headers.get("content-type", ""))


def _validation(request: Request) -> str:
    return str(request.query_params.get("fieldValidation") or "Warn")


def _manager(request: Request) -> str:
    given = request.query_params.get("fieldManager")
    agent = request.headers.get("user-agent", "").partition("/")[0]
    return str(given or agent or "unknown")


def _wants_table(request: Request) -> bool:
    return "as=Table" in request.headers.get("accept", "").partition(",")[0]


def _json(content: Object, code: int = 200) -> Response:
    return Response(msgspec.json.encode(content), code, media_type="application/json")


def _refusal(refused: Refused) -> Response:
    return _json(status_object(refused), refused.code)


def _openapi(path: str) -> Response:
    groups = {kind.root.removeprefix("/"): kind for kind in KINDS}
    name = path.removeprefix("/openapi/v3").strip("/")
    if not name:
        paths = {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in sorted(groups)}
        return _json({"paths": paths})
    if name not in groups:
        raise not_found()
    return _json(schema.openapi(groups[name].group, groups[name].version))
