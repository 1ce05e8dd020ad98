"""Responses: objects, lists and statuses in the form that the client accepts.

JSON, YAML or protobuf; complete, as a table, or only the metadata.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec
import yaml
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from plugwright.apiserver import kubernetes_objects, printers
from plugwright.apiserver.clock import Clock
from plugwright.apiserver.errors import status_object
from plugwright.apiserver.kinds import Kind
from plugwright.apiserver.stored_objects import Object, StoredObjects
from plugwright.errors import StatusError

__all__ = [
    "Accepted",
    "ResponseForm",
    "accepted",
    "as_quoted_json",
    "encoded",
    "failure",
    "json",
    "object_list",
    "presenter",
    "success",
    "with_warnings",
]

_YAML = "application/yaml"
_MEDIA_TYPES = {
    "": "application/json",
    "*/*": "application/json",
    "application/*": "application/json",
    "application/json": "application/json",
    _YAML: _YAML,
    kubernetes_objects.MEDIA_TYPE: kubernetes_objects.MEDIA_TYPE,
}
_PIECE = 2**17  # octets
_ACCEPTED = f"application/json, {_YAML}, {kubernetes_objects.MEDIA_TYPE}"


class ResponseForm(Enum):
    """The form that a client requests with `as=` in its Accept header."""

    WHOLE = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"

    @property
    def is_metadata_only(self) -> bool:
        return self in (ResponseForm.METADATA, ResponseForm.METADATA_LIST)


_BY_PARAMETER = {form.value: form for form in ResponseForm}


@dataclass(frozen=True, slots=True)
class Accepted:
    """The served form that a client accepts."""

    media_type: str = "application/json"
    form: ResponseForm = ResponseForm.WHOLE

    @property
    def is_protobuf(self) -> bool:
        return self.media_type == kubernetes_objects.MEDIA_TYPE


def accepted(request: Request, is_watch: bool = False) -> Accepted:
    """The served media type that the client prefers; there are no tables in protobuf."""
    for offer in sorted(request.headers.get("accept", "").split(","), key=_quality, reverse=True):
        media, *parameters = (part.strip() for part in offer.split(";"))
        name = dict(parameter.partition("=")[::2] for parameter in parameters).get("as", "")
        if media not in _MEDIA_TYPES or name not in _BY_PARAMETER or (is_watch and media == _YAML):
            continue
        found = Accepted(_MEDIA_TYPES[media], _BY_PARAMETER[name])
        if not (found.is_protobuf and found.form is ResponseForm.TABLE):
            return found
    raise StatusError(406, "NotAcceptable", f"only the following media types are accepted: {_ACCEPTED}")


def _quality(offer: str) -> float:
    _, _, text = offer.partition(";q=")
    try:
        return float(text.partition(";")[0]) if text else 1.0
    except ValueError:
        return 1.0


def presenter(request: Request, kind: Kind, now: Clock) -> Callable[[Object], Object]:
    """A function that converts one object into the form that the client accepts."""
    form = accepted(request).form
    if form is ResponseForm.TABLE:
        include = request.query_params.get("includeObject", "Metadata")
        return lambda content: {
            **printers.table(kind.columns, [content], now(), include),
            "metadata": {"resourceVersion": content["metadata"].get("resourceVersion", "")},
        }
    if form.is_metadata_only:
        type_meta = {"kind": ResponseForm.METADATA.value, "apiVersion": "meta.k8s.io/v1"}
        return lambda content: {**type_meta, "metadata": content["metadata"]}
    return kind.from_stored


def object_list(kind: Kind, objects: Sequence[Object], metadata: Object) -> Object:
    items = objects if kind.storage is kind else [kind.from_stored(content) for content in objects]
    return {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}


def encoded(request: Request, content: Object, code: int = 200) -> Response:
    """An object, a list or a Status, already in the client's form, in its media type."""
    media_type = accepted(request).media_type
    if media_type == kubernetes_objects.MEDIA_TYPE:
        if isinstance(items := content.get("items"), StoredObjects):
            content = {**content, "items": list(items)}
        return Response(kubernetes_objects.encode(content), code, media_type=media_type)
    if media_type == _YAML:
        document = msgspec.json.decode(_encode_json(content))  # without aliases for repeated values
        return Response(yaml.safe_dump(document, allow_unicode=True), code, headers={"content-type": _YAML})
    return json(content, code)


def json(content: Object, code: int = 200) -> Response:
    return _PiecewiseResponse(_encode_json(content), code, media_type="application/json")


class _PiecewiseResponse(Response):
    """Sent at the client's speed: a large list is not copied as a whole into the buffers of the connection."""

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for begin in range(0, len(self.body), _PIECE):
            end = begin + _PIECE
            more = end < len(self.body)
            await send({"type": "http.response.body", "body": self.body[begin:end], "more_body": more})


def _encode_json(content: Object) -> bytes:
    return msgspec.json.encode(content, enc_hook=_raw_items)


def _raw_items(value: object) -> list[msgspec.Raw]:
    assert isinstance(value, StoredObjects), type(value)
    return value.raw()


def as_quoted_json(content: object) -> str:
    """A document quoted inside a message."""
    return msgspec.json.encode(msgspec.json.encode(content).decode()).decode()


def failure(request: Request, error: StatusError) -> Response:
    """An error response, in JSON for a client that accepts no served form."""
    status = status_object(error)
    try:
        response = encoded(request, status, error.code)
    except StatusError:
        response = json(status, error.code)
    if "retryAfterSeconds" in error.details:
        response.headers["retry-after"] = str(error.details["retryAfterSeconds"])
    return response


def success(request: Request, code: int, details: Object | None = None) -> Response:
    extra = {"details": details} if details else {"code": code}
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", **extra}
    return encoded(request, status, code)


def with_warnings(response: Response, warnings: Sequence[str]) -> Response:
    """Adds a header for each different warning; characters not allowed in a header become `?`."""
    for warning in dict.fromkeys(warnings):
        text = "".join(character if " " <= character <= "~" else "?" for character in warning)
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.append("warning", f'299 - "{quoted}"')
    return response
