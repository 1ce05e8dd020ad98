"""Answers: in which form a client wants its objects, and how they are written down."""

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from plugwright.cluster.api import printers
from plugwright.cluster.api.errors import Refused, status_object
from plugwright.cluster.api.kinds import Kind
from plugwright.cluster.clock import Clock
from plugwright.cluster.store import Object

__all__ = ["Form", "form", "json", "refusal", "shown", "success", "text", "whole", "with_warnings"]

_PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
_JSON = frozenset({"", "*/*", "application/*", "application/json"})


class Form(Enum):
    """What the client asked for with its Accept header."""

    WHOLE = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"

    @property
    def is_partial(self) -> bool:
        return self in (Form.METADATA, Form.METADATA_LIST)


def form(request: Request) -> Form:
    """The first one of those it accepts that we serve."""
    for accepted in request.headers.get("accept", "").split(","):
        media, *parameters = (part.strip() for part in accepted.split(";"))
        wanted = dict(parameter.partition("=")[::2] for parameter in parameters).get("as", "")
        if media in _JSON and wanted in {each.value for each in Form}:
            return Form(wanted)
    raise Refused(406, "NotAcceptable", "only the following media types are accepted: application/json")


def json(content: Object, code: int = 200) -> Response:
    return Response(msgspec.json.encode(content), code, media_type="application/json")


def text(content: object) -> str:
    """A document within a message: as JSON, quoted."""
    return msgspec.json.encode(msgspec.json.encode(content).decode()).decode()


def refusal(refused: Refused) -> Response:
    return json(status_object(refused), refused.code)


def success(code: int, details: Object | None = None) -> Response:
    told = {"details": details} if details else {"code": code}
    return json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", **told}, code)


def whole(kind: Kind, items: Sequence[Object], metadata: Object) -> Object:
    """A list of objects as they are."""
    return {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata, "items": list(items)}


def shown(request: Request, kind: Kind, now: Clock) -> Callable[[Object], Object]:
    """Makes of one object what the client wants to see of it."""
    wanted = form(request)
    if wanted is Form.TABLE:
        include = request.query_params.get("includeObject", "Metadata")
        return lambda found: {
            **printers.table(kind, [found], now(), include),
            "metadata": {"resourceVersion": found["metadata"].get("resourceVersion", "")},
        }
    if wanted.is_partial:
        return lambda found: {**_PARTIAL, "metadata": found["metadata"]}
    return lambda found: found


def with_warnings(response: Response, warnings: Sequence[str]) -> Response:
    """As headers, each once; only what a header can carry."""
    for warning in dict.fromkeys(warnings):
        text = "".join(each if " " <= each <= "~" else "?" for each in warning)
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.append("warning", f'299 - "{quoted}"')
    return response
