"""What is read: one object, a list, a watch, a container's log."""

from collections.abc import Mapping
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from plugwright.cluster.api import answers, pages, requests, selectors, tables, watching
from plugwright.cluster.api.answers import Form
from plugwright.cluster.api.errors import Refused, bad_request, not_found
from plugwright.cluster.api.requests import Target
from plugwright.cluster.clock import Clock
from plugwright.cluster.store import Key, Object, Store

__all__ = ["Logs", "Reader", "place_of", "selector"]


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
            return answers.json(answers.shown(request, target.kind, self._now)(found))
        return self._list(request, target)

    def _list(self, request: Request, target: Target) -> Response:
        query = request.query_params
        token = pages.read(query["continue"]) if query.get("continue") else None
        revision = token.rv if token else self._revision(query)
        chosen = selector(query)
        items = [each for each in self._store.at(revision, target.kind.qualified, target.namespace) if chosen(each)]
        page = pages.cut(items, token, requests.number(query, "limit") or None)
        metadata: Object = {"resourceVersion": str(revision)}
        if page.rest:
            metadata["continue"] = pages.write(revision, page.items[-1])
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = page.rest
        return answers.json(self._listed(request, target, page, metadata))

    def _listed(self, request: Request, target: Target, page: pages.Page, metadata: Object) -> Object:
        form = answers.form(request)
        if form is Form.TABLE:
            include = request.query_params.get("includeObject", "Metadata")
            return {**tables.table(target.kind, page.items, self._now(), include), "metadata": metadata}
        if form.is_partial:
            shown = answers.shown(request, target.kind, self._now)
            items = [shown(each) for each in page.items]
            return {
                "kind": Form.METADATA_LIST.value,
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "items": items,
            }
        return answers.whole(target.kind, page.items, metadata)

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
        whole = answers.form(request) is not Form.TABLE
        initial = query.get("sendInitialEvents") == "true"
        watch = watching.Watch(
            target.kind,
            target.namespace,
            _of_name(selector(query), target.name),
            answers.shown(request, target.kind, self._now),
            watching.Telling(
                bookmarks=query.get("allowWatchBookmarks") in ("1", "true") and whole,
                initial=initial,
                timeout=requests.number(query, "timeoutSeconds"),
            ),
        )
        lines = watching.lines(self._store, watch, None if initial else since)
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


def selector(query: Mapping[str, str]) -> selectors.Selector:
    by_label = selectors.labels(query.get("labelSelector", ""))
    by_field = selectors.fields(query.get("fieldSelector", ""))
    return lambda found: by_label(found) and by_field(found)


def _of_name(chosen: selectors.Selector, name: str) -> selectors.Selector:
    """Watching one object by its own path."""
    return (lambda found: found["metadata"]["name"] == name and chosen(found)) if name else chosen


def place_of(target: Target) -> Key:
    if not target.name:
        raise not_found()
    return Key(target.kind.qualified, target.namespace, target.name)
