"""What is read: one object, a list, a watch, a container's log.

What is written: created, replaced, patched, deleted, bound, evicted. Rules about objects are `writing`'s.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from plugwright.cluster.api import list_options, printers, requests, responses
from plugwright.cluster.api.errors import Refused, bad_request, not_found, unsupported_media
from plugwright.cluster.api.kinds import PODS
from plugwright.cluster.api.patch import json_patch, merge, merge_patch
from plugwright.cluster.api.registry import Deletion, Place, Writer
from plugwright.cluster.api.requests import Target
from plugwright.cluster.api.responses import Form
from plugwright.cluster.api.watch import Telling, Watch, watch_lines
from plugwright.cluster.clock import Clock
from plugwright.cluster.store import Key, Object, Rehearsal, Store

__all__ = ["Changer", "Logs", "Reader", "place_of", "selector"]


class Logs(Protocol):
    """Who knows what containers have written."""

    def log(self, namespace: str, pod: str, container: str) -> str: ...


class Reader:
    def __init__(self, store: Store, logs: Logs, now: Clock) -> None:
        self._store, self._logs, self._now = store, logs, now

    def get(self, request: Request, target: Target) -> Response:
        if target.subresource == "log":
            return self._log(request.query_params, target)
        if target.subresource not in ("", "status"):
            raise requests.not_allowed()
        query = request.query_params
        if query.get("watch") in ("1", "true"):
            return self._watch(request, target)
        if target.name:
            found = self._store.take(place_of(target))
            return responses.json(responses.shown(request, target.kind, self._now)(found))
        return self._list(request, target)

    def _list(self, request: Request, target: Target) -> Response:
        query = request.query_params
        token = list_options.read(query["continue"]) if query.get("continue") else None
        revision = token.rv if token else self._revision(query)
        chosen = selector(query)
        items = [each for each in self._store.at(revision, target.kind.qualified, target.namespace) if chosen(each)]
        page = list_options.cut(items, token, requests.number(query, "limit") or None)
        metadata: Object = {"resourceVersion": str(revision)}
        if page.rest:
            metadata["continue"] = list_options.write(revision, page.items[-1])
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = page.rest
        return responses.json(self._listed(request, target, page, metadata))

    def _listed(self, request: Request, target: Target, page: list_options.Page, metadata: Object) -> Object:
        form = responses.form(request)
        if form is Form.TABLE:
            include = request.query_params.get("includeObject", "Metadata")
            return {**printers.table(target.kind, page.items, self._now(), include), "metadata": metadata}
        if form.is_partial:
            shown = responses.shown(request, target.kind, self._now)
            items = [shown(each) for each in page.items]
            return {
                "kind": Form.METADATA_LIST.value,
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "items": items,
            }
        return responses.whole(target.kind, page.items, metadata)

    def _revision(self, query: Mapping[str, str]) -> int:
        """The moment to list: now, which is no older than any that a client asks for, unless it wants a very one."""
        wanted, now = requests.number(query, "resourceVersion") or 0, self._store.revision
        if wanted > now:
            text = f"Too large resource version: {wanted}, current: {now}"
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            raise Refused(504, "Timeout", text, {"causes": [cause], "retryAfterSeconds": 1})
        return wanted if wanted and query.get("resourceVersionMatch") == "Exact" else now

    def _watch(self, request: Request, target: Target) -> Response:
        query = request.query_params
        since = requests.number(query, "resourceVersion") or None
        whole = responses.form(request) is not Form.TABLE
        initial = query.get("sendInitialEvents") == "true"
        watch = Watch(
            target.kind,
            target.namespace,
            _of_name(selector(query), target.name),
            responses.shown(request, target.kind, self._now),
            Telling(
                bookmarks=query.get("allowWatchBookmarks") in ("1", "true") and whole,
                initial=initial,
                timeout=requests.number(query, "timeoutSeconds"),
            ),
        )
        lines = watch_lines(self._store, watch, None if initial else since)
        return StreamingResponse(lines, media_type="application/json")

    def _log(self, query: Mapping[str, str], target: Target) -> Response:
        pod = self._store.take(place_of(target))
        names = [each["name"] for part in ("containers", "initContainers") for each in pod["spec"].get(part) or []]
        container = query.get("container") or _only(target.name, pod)
        if container not in names:
            raise bad_request(f"container {container} is not valid for pod {target.name}")
        if not pod["spec"].get("nodeName"):  # nothing has been written yet
            return Response(media_type="text/plain")
        lines = self._logs.log(target.namespace, target.name, container).splitlines(keepends=True)
        tail, most = requests.number(query, "tailLines"), requests.number(query, "limitBytes")
        text = "".join(lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]).encode()
        return Response(text if most is None else text[:most], media_type="text/plain")


def _only(name: str, pod: Object) -> str:
    containers = [each["name"] for each in pod["spec"]["containers"]]
    if len(containers) > 1:
        listed = " ".join(containers)
        raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{listed}]")
    return str(containers[0])


def selector(query: Mapping[str, str]) -> list_options.Selector:
    by_label = list_options.labels(query.get("labelSelector", ""))
    by_field = list_options.fields(query.get("fieldSelector", ""))
    return lambda found: by_label(found) and by_field(found)


def _of_name(chosen: list_options.Selector, name: str) -> list_options.Selector:
    """Watching one object by its own path."""
    return (lambda found: found["metadata"]["name"] == name and chosen(found)) if name else chosen


def place_of(target: Target) -> Key:
    if not target.name:
        raise not_found()
    return Key(target.kind.qualified, target.namespace, target.name)


_PATCHES: dict[str, Callable[[Any, Any], Any]] = {  # type: ignore[explicit-any,unused-ignore]
    "application/json-patch+json": json_patch,
    "application/merge-patch+json": merge_patch,
    "application/strategic-merge-patch+json": merge,
}
_APPLY = frozenset({"application/apply-patch+yaml", "application/apply-patch+cbor"})


class Changer:
    def __init__(self, store: Store, now: Clock) -> None:
        self._store, self._now = store, now
        self._writer = Writer(store, now)
        self._rehearsing = Writer(Rehearsal(store), now)

    async def post(self, request: Request, target: Target) -> Response:
        content = await requests.received(request)
        if target.subresource == "binding":
            return self._bind(request, target, content)
        if target.subresource == "eviction":
            return self._evict(request, target, content)
        if target.name:
            raise requests.not_allowed()
        content, warnings = requests.checked(target.kind, content, requests.validation(request))
        created = self._for(request).create(_place(target), content, requests.manager(request))
        return self._written(request, target, created, warnings)

    async def put(self, request: Request, target: Target) -> Response:
        place = _named(target)
        content, warnings = requests.checked(
            target.kind, await requests.received(request), requests.validation(request)
        )
        updated = self._for(request).update(place, content, requests.manager(request))
        return self._written(request, target, updated, warnings)

    async def patch(self, request: Request, target: Target) -> Response:
        place, media = _named(target), requests.media(request)
        if media in _APPLY:
            text = "server-side apply is not served by the embedded cluster; use client-side apply (kubectl apply)"
            raise Refused(415, "UnsupportedMediaType", text)
        if media not in _PATCHES:
            raise unsupported_media([*sorted(_PATCHES)])
        patch, warnings = await requests.received(request), list[str]()
        _check_patch(media, patch)

        def changed(before: Object) -> Object:
            patched = _PATCHES[media](before, patch)
            requests.check_depth(patched)
            try:
                after, told = requests.checked(target.kind, patched, requests.validation(request))
            except Refused as refused:
                raise _misfit(patched, refused) from None
            warnings.extend(told)
            return after

        updated = self._for(request).change(place, changed, requests.manager(request))
        return self._written(request, target, updated, warnings)

    async def delete(self, request: Request, target: Target) -> Response:
        if target.subresource:
            raise requests.not_allowed()
        content = await requests.received(request)
        options, writer = requests.deletion(content, request.query_params), self._for(request, content)
        if not target.name:
            return self._delete_all(request, target, options, writer)
        found, gone = writer.delete(_place(target), options)
        if target.kind is PODS or not gone:
            return responses.json(found)
        details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural}
        told = {name: value for name, value in details.items() if value}
        return responses.success(200, {**told, "uid": found["metadata"]["uid"]})

    def _delete_all(self, request: Request, target: Target, options: Deletion, writer: Writer) -> Response:
        chosen = selector(request.query_params)
        items = [each for each in self._store.every(target.kind.qualified, target.namespace) if chosen(each)]
        for each in items:
            metadata = each["metadata"]
            writer.delete(Place(target.kind, metadata.get("namespace", ""), metadata["name"]), options)
        return responses.json(responses.whole(target.kind, items, {"resourceVersion": str(self._store.revision)}))

    def _bind(self, request: Request, target: Target, content: object) -> Response:
        chosen = content.get("target") if isinstance(content, dict) else None
        node = chosen.get("name") if isinstance(chosen, dict) else None
        if not node or not isinstance(node, str):
            raise bad_request("a binding has a target with a name")
        self._for(request, content).bind(Place(target.kind, target.namespace, target.name), node)
        return responses.success(201)

    def _evict(self, request: Request, target: Target, content: object) -> Response:
        options = (content.get("deleteOptions") if isinstance(content, dict) else None) or {}
        writer = self._for(request, options)
        writer.delete(Place(target.kind, target.namespace, target.name), requests.deletion(options, {}))
        return responses.success(201)

    def _for(self, request: Request, content: object = None) -> Writer:
        """The writer, or the one that only pretends."""
        return self._rehearsing if requests.is_dry(request.query_params, content) else self._writer

    def _written(self, request: Request, target: Target, found: Object, warnings: list[str]) -> Response:
        shown = responses.shown(request, target.kind, self._now)(found)
        code = 201 if request.method == "POST" else 200
        return responses.with_warnings(responses.json(shown, code), warnings)


def _misfit(patched: object, refused: Refused) -> Refused:
    """A patch that leaves no object of the kind, as a server says it: with all that it leaves."""
    shown, why = responses.text(patched), refused.message.rpartition("cannot be handled as a ")[2].partition(": ")
    cause = {"reason": "FieldValueInvalid", "message": f"Invalid value: {shown}: {why[2] or why[0]}", "field": "patch"}
    return Refused(422, "Invalid", f' "" is invalid: patch: {cause["message"]}', {"causes": [cause]})


def _check_patch(media: str, patch: object) -> None:
    wanted, name = (list, "[]handlers.jsonPatchOp") if "json-patch" in media else (dict, "map[string]interface {}")
    if not isinstance(patch, wanted):
        given = {dict: "object", list: "array", str: "string", bool: "bool"}.get(type(patch), "number")
        raise bad_request(f"error decoding patch: json: cannot unmarshal {given} into Go value of type {name}")


def _place(target: Target) -> Place:
    return Place(target.kind, target.namespace, target.name, target.subresource)


def _named(target: Target) -> Place:
    if not target.name or target.subresource not in ("", "status"):
        raise requests.not_allowed()
    return _place(target)
