"""What is written: created, replaced, patched, deleted, bound, evicted. Rules about objects are `writing`'s."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from plugwright.cluster import patching, strategic
from plugwright.cluster.api import answers, bodies, requests
from plugwright.cluster.api.errors import Refused, bad_request, unsupported_media
from plugwright.cluster.api.kinds import PODS
from plugwright.cluster.api.reading import selector
from plugwright.cluster.api.requests import Target
from plugwright.cluster.api.writing import Deletion, Place, Writer
from plugwright.cluster.clock import Clock
from plugwright.cluster.rehearsal import Rehearsal
from plugwright.cluster.store import Object, Store

__all__ = ["Changer"]

_PATCHES: dict[str, Callable[[Any, Any], Any]] = {  # type: ignore[explicit-any,unused-ignore]
    "application/json-patch+json": patching.json_patch,
    "application/merge-patch+json": patching.merge_patch,
    "application/strategic-merge-patch+json": strategic.merge,
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
            bodies.check_depth(patched)
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
            return answers.json(found)
        details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural}
        told = {name: value for name, value in details.items() if value}
        return answers.success(200, {**told, "uid": found["metadata"]["uid"]})

    def _delete_all(self, request: Request, target: Target, options: Deletion, writer: Writer) -> Response:
        chosen = selector(request.query_params)
        items = [each for each in self._store.every(target.kind.qualified, target.namespace) if chosen(each)]
        for each in items:
            metadata = each["metadata"]
            writer.delete(Place(target.kind, metadata.get("namespace", ""), metadata["name"]), options)
        return answers.json(answers.whole(target.kind, items, {"resourceVersion": str(self._store.revision)}))

    def _bind(self, request: Request, target: Target, content: object) -> Response:
        chosen = content.get("target") if isinstance(content, dict) else None
        node = chosen.get("name") if isinstance(chosen, dict) else None
        if not node or not isinstance(node, str):
            raise bad_request("a binding has a target with a name")
        self._for(request, content).bind(Place(target.kind, target.namespace, target.name), node)
        return answers.success(201)

    def _evict(self, request: Request, target: Target, content: object) -> Response:
        options = (content.get("deleteOptions") if isinstance(content, dict) else None) or {}
        writer = self._for(request, options)
        writer.delete(Place(target.kind, target.namespace, target.name), requests.deletion(options, {}))
        return answers.success(201)

    def _for(self, request: Request, content: object = None) -> Writer:
        """The writer, or the one that only pretends."""
        return self._rehearsing if requests.is_dry(request.query_params, content) else self._writer

    def _written(self, request: Request, target: Target, found: Object, warnings: list[str]) -> Response:
        shown = answers.shown(request, target.kind, self._now)(found)
        code = 201 if request.method == "POST" else 200
        return answers.with_warnings(answers.json(shown, code), warnings)


def _misfit(patched: object, refused: Refused) -> Refused:
    """A patch that leaves no object of the kind, as a server says it: with all that it leaves."""
    shown, why = answers.text(patched), refused.message.rpartition("cannot be handled as a ")[2].partition(": ")
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
