"""Responses: objects, lists and statuses in the form that the client accepts.

JSON, or protobuf for the kinds that DRA drivers read; errors are JSON always, which every client of Go reads too.
"""

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from plugwright.cluster.api import printers
from plugwright.cluster.api.errors import StatusError, status_object
from plugwright.cluster.api.kinds import Kind
from plugwright.cluster.clock import Clock
from plugwright.cluster.store import Object
from plugwright.protocol import kubernetes_objects

__all__ = [
    "ResponseForm",
    "accepted_form",
    "as_quoted_json",
    "encoded",
    "failure",
    "json",
    "object_list",
    "presenter",
    "success",
    "with_warnings",
]

_JSON = frozenset({"", "*/*", "application/*", "application/json"})


class ResponseForm(Enum):
    """The form that a client asks for with `as=` in its Accept header."""

    WHOLE = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"
    PROTOBUF = "protobuf"  # whole; by the media type, not by `as=`

    @property
    def is_metadata_only(self) -> bool:
        return self in (ResponseForm.METADATA, ResponseForm.METADATA_LIST)


_BY_PARAMETER = {form.value: form for form in ResponseForm if form is not ResponseForm.PROTOBUF}


def accepted_form(request: Request, kind: Kind) -> ResponseForm:
    """The first of the client's media types that is served for this kind."""
    is_written = kubernetes_objects.is_written(kind.api_version, kind.name)
    for accepted in request.headers.get("accept", "").split(","):
        media, *parameters = (part.strip() for part in accepted.split(";"))
        name = dict(parameter.partition("=")[::2] for parameter in parameters).get("as", "")
        if media in _JSON and name in _BY_PARAMETER:
            return _BY_PARAMETER[name]
        if media == kubernetes_objects.MEDIA_TYPE and is_written and not name:
            return ResponseForm.PROTOBUF
    raise StatusError(406, "NotAcceptable", "only the following media types are accepted: application/json")


def presenter(request: Request, kind: Kind, now: Clock) -> Callable[[Object], Object]:
    """A function that puts one object into the form that the client accepts."""
    form = accepted_form(request, kind)
    if form is ResponseForm.TABLE:
        include = request.query_params.get("includeObject", "Metadata")
        return lambda content: {
            **printers.table(kind.columns, [content], now(), include),
            "metadata": {"resourceVersion": content["metadata"].get("resourceVersion", "")},
        }
    if form.is_metadata_only:
        type_meta = {"kind": ResponseForm.METADATA.value, "apiVersion": "meta.k8s.io/v1"}
        return lambda content: {**type_meta, "metadata": content["metadata"]}
    return lambda content: content


def object_list(kind: Kind, objects: Sequence[Object], metadata: Object) -> Object:
    return {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata, "items": list(objects)}


def encoded(form: ResponseForm, content: Object, code: int = 200) -> Response:
    """An object or a list that is in that form already."""
    if form is ResponseForm.PROTOBUF:
        return Response(kubernetes_objects.encode(content), code, media_type=kubernetes_objects.MEDIA_TYPE)
    return json(content, code)


def json(content: Object, code: int = 200) -> Response:
    return Response(msgspec.json.encode(content), code, media_type="application/json")


def as_quoted_json(content: object) -> str:
    """A document inside a message."""
    return msgspec.json.encode(msgspec.json.encode(content).decode()).decode()


def failure(error: StatusError) -> Response:
    return json(status_object(error), error.code)


def success(code: int, details: Object | None = None) -> Response:
    extra = {"details": details} if details else {"code": code}
    return json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", **extra}, code)


def with_warnings(response: Response, warnings: Sequence[str]) -> Response:
    """Adds a header for each different warning; characters that a header cannot carry become `?`."""
    for warning in dict.fromkeys(warnings):
        text = "".join(character if " " <= character <= "~" else "?" for character in warning)
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.append("warning", f'299 - "{quoted}"')
    return response
