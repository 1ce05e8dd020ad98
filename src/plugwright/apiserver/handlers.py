"""The verbs of the resource API: get, list, watch, create, update, patch, delete, and the subresources of pods.

Reads are answered from the store; writes use `registry`, or a registry on a dry-run store that keeps nothing.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from plugwright.apiserver import (
    kubernetes_objects,
    list_options,
    log_options,
    printers,
    remote_commands,
    requests,
    responses,
    schema,
    server_side_apply,
)
from plugwright.apiserver.clock import Clock
from plugwright.apiserver.errors import bad_request, invalid, method_not_allowed, unsupported_media_type
from plugwright.apiserver.kinds import Kind
from plugwright.apiserver.list_options import Chunk
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.patch import Json, json_patch, merge_patch, strategic_merge_patch
from plugwright.apiserver.registry import DeleteOptions, ResourcePath, Writer, check_identity
from plugwright.apiserver.remote_commands import NO_COMMANDS, STREAMED_SUBRESOURCES, CommandRunner
from plugwright.apiserver.responses import ResponseForm
from plugwright.apiserver.scale import scale_of, scaled
from plugwright.apiserver.store import DryRun, Object, Store
from plugwright.apiserver.watch import Watch, WatchOptions, watch_events
from plugwright.errors import StatusError

__all__ = ["Logs", "ResourceHandlers"]

_PATCHES: dict[str, Callable[[Json, Json, Kind], Json]] = {
    "application/json-patch+json": lambda before, patch, _kind: json_patch(before, patch),
    "application/merge-patch+json": lambda before, patch, _kind: merge_patch(before, patch),
    "application/strategic-merge-patch+json": lambda before, patch, kind: strategic_merge_patch(
        before, patch, kind.object_type
    ),
}
_APPLY = "application/apply-patch+yaml"


class Logs(Protocol):
    """The output of containers."""

    def read_log(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]: ...


class ResourceHandlers:
    def __init__(self, store: Store, logs: Logs, now: Clock, commands: CommandRunner = NO_COMMANDS) -> None:
        self._store, self._logs, self._now, self._commands = store, logs, now, commands
        self._writer = Writer(store, now)
        self._dry_run_writer = Writer(DryRun(store), now)

    async def handle(self, request: Request, path: ResourcePath) -> Response:
        match request.method:
            case "GET" | "HEAD":
                return self._read(request, path)
            case "POST":
                return await self._post(request, path)
            case "PUT":
                return await self.update(request, path)
            case "PATCH":
                return await self.patch(request, path)
            case "DELETE":
                return await self.delete(request, path)
        raise method_not_allowed()

    def _read(self, request: Request, path: ResourcePath) -> Response:
        if path.subresource in STREAMED_SUBRESOURCES:
            return self._refuse_stream(request, path)
        if path.subresource == "log":
            return self.log(request, path)
        if path.subresource == "scale":
            return responses.encoded(request, scale_of(self._store.require(path.key)))
        if path.subresource not in ("", "status"):
            raise method_not_allowed()
        if requests.is_true(request.query_params, "watch"):
            return self.watch(request, path)
        if not path.name:
            list_options.check(request.query_params, is_watch=False)
        return self.get(request, path) if path.name else self.list_collection(request, path)

    def _refuse_stream(self, request: Request, path: ResourcePath) -> Response:
        """Rejects `kubectl exec` and the like without a WebSocket: from older clients, or after a rejected upgrade."""
        self._commands.check(path, remote_commands.read_options(request.query_params))
        raise bad_request(f"{path.subresource} needs a WebSocket here: use kubectl 1.31 or newer")

    async def _post(self, request: Request, path: ResourcePath) -> Response:
        if path.subresource in STREAMED_SUBRESOURCES:
            return self._refuse_stream(request, path)
        content = await requests.read_body(request)
        if path.subresource == "binding":
            return self.bind(request, path, content)
        if path.subresource == "eviction":
            return self.evict(request, path, content)
        if path.name:
            raise method_not_allowed()
        return self.create(request, path, content)

    def get(self, request: Request, path: ResourcePath) -> Response:
        return self._present(request, path.kind, self._store.require(path.key))

    def list_collection(self, request: Request, path: ResourcePath) -> Response:
        query = request.query_params
        token = list_options.decode_token(query["continue"]) if query.get("continue") else None
        revision = token.rv if token else self._revision_to_list(query)
        stored = self._store.objects_at(revision, path.kind.storage.qualified, path.namespace)
        objects = list_options.selected(stored, path.kind, query)
        chunk = list_options.chunk(objects, token, requests.number(query, "limit") or None)
        metadata: Object = {"resourceVersion": str(revision)}
        if chunk.remaining:
            metadata["continue"] = list_options.encode_token(revision, chunk.objects[-1])
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = chunk.remaining
        return responses.encoded(request, self._present_list(request, path.kind, chunk, metadata))

    def _revision_to_list(self, query: Mapping[str, str]) -> int:
        """The current revision, at least as new as any that a client can request, except for an exact request."""
        requested, current = requests.number(query, "resourceVersion") or 0, self._store.revision
        if requested > current:
            text = f"Too large resource version: {requested}, current: {current}"
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            raise StatusError(504, "Timeout", text, {"causes": [cause], "retryAfterSeconds": 1})
        return requested if requested and query.get("resourceVersionMatch") == "Exact" else current

    def _present_list(self, request: Request, kind: Kind, chunk: Chunk, metadata: Object) -> Object:
        form = responses.accepted(request).form
        if form is ResponseForm.TABLE:
            include = request.query_params.get("includeObject", "Metadata")
            return {**printers.table(kind.columns, chunk.objects, self._now(), include), "metadata": metadata}
        if form.is_metadata_only:
            present = responses.presenter(request, kind, self._now)
            return {
                "kind": ResponseForm.METADATA_LIST.value,
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "items": [present(content) for content in chunk.objects],
            }
        return responses.object_list(kind, chunk.objects, metadata)

    def watch(self, request: Request, path: ResourcePath) -> Response:
        query = request.query_params
        list_options.check(query, is_watch=True)
        accepted = responses.accepted(request, is_watch=True)
        options = WatchOptions(
            bookmarks=requests.is_true(query, "allowWatchBookmarks") and accepted.form is not ResponseForm.TABLE,
            initial_events=requests.is_true(query, "sendInitialEvents"),
            timeout=requests.number(query, "timeoutSeconds"),
        )
        since = requests.number(query, "resourceVersion") or None
        matches = list_options.selector(path.kind, query)

        def is_watched(content: Object) -> bool:
            return path.name in ("", content["metadata"]["name"]) and matches(content)

        watch = Watch(
            path.kind, path.namespace, is_watched, responses.presenter(request, path.kind, self._now), options
        )
        media = kubernetes_objects.WATCH_MEDIA_TYPE if accepted.is_protobuf else "application/json"
        if accepted.is_protobuf:
            watch = replace(watch, event=kubernetes_objects.watch_frame)
        return StreamingResponse(
            watch_events(self._store, watch, None if options.initial_events else since), media_type=media
        )

    def log(self, request: Request, path: ResourcePath) -> Response:
        query, pod = request.query_params, self._store.require(path.key)
        options = log_options.read(query, self._now())
        container = _container_to_log(pod, query.get("container", ""))
        if not pod["spec"].get("nodeName"):  # it has not been started
            return Response(media_type="text/plain")
        text = self._logs.read_log(path.namespace, path.name, container, options)
        return StreamingResponse(text, media_type="text/plain")

    def create(self, request: Request, path: ResourcePath, content: object) -> Response:
        checked, warnings = schema.checked_object(path.kind, content, requests.field_validation(request))
        stored = _in_stored_form(path, checked)
        created = self._writer_for(request).create(path.stored, stored, requests.field_manager(request))
        warnings += path.kind.warnings(created)
        return responses.with_warnings(self._present(request, path.kind, created, 201), warnings)

    async def scale(self, request: Request, path: ResourcePath) -> Response:
        """Writes the number of replicas: a whole Scale, or a patch of it."""
        content, media = await requests.read_body(request), requests.media_type(request)
        is_patch = request.method == "PATCH"
        if is_patch and media not in _PATCHES:
            raise unsupported_media_type(sorted(_PATCHES))

        def changed(before: Object) -> Object:
            scale = _PATCHES[media](scale_of(before), content, path.kind) if is_patch else content
            return scaled(path.kind, before, scale)

        whole, writer = replace(path, subresource=""), self._writer_for(request)
        return responses.encoded(request, scale_of(writer.change(whole, changed, requests.field_manager(request))))

    async def update(self, request: Request, path: ResourcePath) -> Response:
        if path.subresource == "scale":
            return await self.scale(request, path)
        _check_writable(path)
        content = await requests.read_body(request)
        checked, warnings = schema.checked_object(path.kind, content, requests.field_validation(request))
        writer, manager = self._writer_for(request), requests.field_manager(request)
        before = self._store.get(path.key)
        stored = _in_stored_form(path, checked, before)
        if path.kind.allow_create_on_update and before is None:
            created = writer.create(replace(path.stored, name=""), stored, manager)
            return responses.with_warnings(self._present(request, path.kind, created, 201), warnings)
        updated = writer.update(path.stored, stored, manager)
        warnings += path.kind.warnings(updated)
        return responses.with_warnings(self._present(request, path.kind, updated), warnings)

    async def patch(self, request: Request, path: ResourcePath) -> Response:
        if path.subresource == "scale":
            return await self.scale(request, path)
        _check_writable(path)
        media = requests.media_type(request)
        if media == _APPLY:
            return await self.apply(request, path)
        if media not in _PATCHES:
            raise unsupported_media_type([_APPLY, *sorted(_PATCHES)])
        patch, warnings = await requests.read_body(request), list[str]()
        _check_patch_type(media, patch)

        def patched(before: Object) -> Object:
            after = _PATCHES[media](path.kind.from_stored(before), patch, path.kind)
            requests.check_depth(after)
            try:
                checked, new_warnings = schema.checked_object(path.kind, after, requests.field_validation(request))
            except StatusError as error:
                raise _invalid_patch(after, error) from None
            warnings.extend(new_warnings)
            return _in_stored_form(path, checked, before)

        updated = self._writer_for(request).change(path.stored, patched, requests.field_manager(request))
        warnings += path.kind.warnings(updated)
        return responses.with_warnings(self._present(request, path.kind, updated), warnings)

    async def apply(self, request: Request, path: ResourcePath) -> Response:
        """Applies server-side."""
        content, manager = await requests.read_body(request), request.query_params.get("fieldManager")
        if not manager:
            raise requests.missing_field_manager()
        if not isinstance(content, dict):
            raise bad_request("error decoding YAML: an applied object must be an object")
        server_side_apply.check_configuration(path.kind, content)
        checked, _ = schema.checked_object(path.kind, content, "Ignore")
        force = requests.is_true(request.query_params, "force")
        writer, stored = self._writer_for(request), path.kind.to_stored(checked)
        applied, is_new = writer.apply(path.stored, stored, requests.field_manager(request), force)
        response = self._present(request, path.kind, applied, 201 if is_new else 200)
        return responses.with_warnings(response, list(path.kind.warnings(applied)))

    async def delete(self, request: Request, path: ResourcePath) -> Response:
        if path.subresource:
            raise method_not_allowed()
        content = await requests.read_body(request, may_be_empty=True)
        options, writer = requests.delete_options(content, request.query_params), self._writer_for(request, content)
        if not path.name:
            return self._delete_collection(request, path, options, writer)
        deleted, is_gone = writer.delete(path, options)
        if path.kind.returns_deleted_object or not is_gone:
            return responses.encoded(request, deleted)
        details = {"name": path.name, "group": path.kind.group, "kind": path.kind.plural}
        non_empty = {name: value for name, value in details.items() if value}
        return responses.success(request, 200, {**non_empty, "uid": deleted["metadata"]["uid"]})

    def _delete_collection(
        self, request: Request, path: ResourcePath, options: DeleteOptions, writer: Writer
    ) -> Response:
        stored = self._store.objects(path.kind.storage.qualified, path.namespace)
        objects = list_options.selected(stored, path.kind, request.query_params)
        for content in objects:
            metadata = content["metadata"]
            writer.delete(ResourcePath(path.kind, metadata.get("namespace", ""), metadata["name"]), options)
        metadata = {"resourceVersion": str(self._store.revision)}
        return responses.encoded(request, responses.object_list(path.kind, objects, metadata))

    def bind(self, request: Request, path: ResourcePath, content: object) -> Response:
        target = content.get("target") if isinstance(content, dict) else None
        target = target if isinstance(target, dict) else {}
        node = target.get("name")
        if not node or not isinstance(node, str) or target.get("kind", "Node") not in ("", "Node"):
            raise bad_request("a binding must have a target of the kind Node with a name")
        self._writer_for(request, content).bind(path, node)
        return responses.success(request, 201)

    def evict(self, request: Request, path: ResourcePath, content: object) -> Response:
        options = (content.get("deleteOptions") if isinstance(content, dict) else None) or {}
        self._writer_for(request, options).delete(path, requests.delete_options(options, {}))
        return responses.success(request, 201)

    def _present(self, request: Request, kind: Kind, content: Object, code: int = 200) -> Response:
        return responses.encoded(request, responses.presenter(request, kind, self._now)(content), code)

    def _writer_for(self, request: Request, content: object = None) -> Writer:
        return self._dry_run_writer if requests.is_dry_run(request, content) else self._writer


def _in_stored_form(path: ResourcePath, content: Object, before: Object | None = None) -> Object:
    """The object in its stored form; if that is another kind, the kind that the client writes to has its own rules."""
    kind = path.kind
    if kind.stored_as is None:
        return content
    check_identity(path, content, content.get("metadata") or {})
    named = {**content, "metadata": {"namespace": path.namespace, **(content.get("metadata") or {})}}
    errors = kind.validate_update(kind.from_stored(before), named) if before else kind.validate_create(named)
    if found := list(errors):
        raise invalid(kind, str(named["metadata"].get("name") or ""), found)
    return kind.to_stored(content)


def _container_to_log(pod: Object, requested: str) -> str:
    name, spec = pod["metadata"]["name"], pod["spec"]
    containers = [container["name"] for container in spec["containers"]]
    choices = [*(init["name"] for init in spec.get("initContainers") or ()), *containers]
    if not requested and len(containers) > 1:
        listed = " ".join(choices)
        raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{listed}]")
    container = requested or str(containers[0])
    if container not in choices:
        raise bad_request(f"container {container} is not valid for pod {name}")
    return container


def _check_writable(path: ResourcePath) -> None:
    if not path.name or path.subresource not in ("", "status"):
        raise method_not_allowed()


def _check_patch_type(media: str, patch: object) -> None:
    expected, go_type = (list, "[]handlers.jsonPatchOp") if "json-patch" in media else (dict, "map[string]interface {}")
    if not isinstance(patch, expected):
        got = {dict: "object", list: "array", str: "string", bool: "bool"}.get(type(patch), "number")
        raise bad_request(f"error decoding patch: json: cannot unmarshal {got} into Go value of type {go_type}")


def _invalid_patch(patched: object, error: StatusError) -> StatusError:
    """The error for a patch whose result is not an object of the kind, as in kube-apiserver, with the whole result."""
    problem = error.message.rpartition("cannot be handled as a ")[2]
    document, reason = responses.as_quoted_json(patched), problem.partition(": ")[2] or problem
    cause = {"reason": "FieldValueInvalid", "message": f"Invalid value: {document}: {reason}", "field": "patch"}
    return StatusError(422, "Invalid", f' "" is invalid: patch: {cause["message"]}', {"causes": [cause]})
