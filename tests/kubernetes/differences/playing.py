"""Requests, and what an API server makes of them: as far as two servers can be expected to say the same.

What differs from run to run (uids, versions, times) is left out; of a refusal, its code, reason and causes are kept.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

__all__ = ["Played", "answer_of", "play"]

Json = dict[str, Any]
_VOLATILE = frozenset({"uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink", "deletionTimestamp"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
_PREFIXED = re.compile(r"A_[a-z0-9]{5}\b")
_GENERATED = re.compile(r"^made-[a-z0-9]{5}$")
_PODS_DIFF = "\n"  # a refused change of a pod is followed by a diff of Go structures


@dataclass(frozen=True, slots=True)
class Played:
    """One request; `{uid}` and `{version}` in its body stand for those of the object at its path."""

    name: str
    method: str
    path: str
    body: object = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


async def play(client: httpx2.AsyncClient, requests: Iterable[Played]) -> dict[str, Json]:
    """The answers by the names of the requests, which are sent one after the other."""
    answers: dict[str, Json] = {}
    for request in requests:
        assert request.name not in answers, f"two requests are named {request.name!r}"
        answers[request.name] = answer_of(await _send(client, request))
    return answers


async def _send(client: httpx2.AsyncClient, request: Played) -> httpx2.Response:
    body = request.body if isinstance(request.body, str | None) else json.dumps(request.body)
    if body and ("{uid}" in body or "{version}" in body):
        metadata = (await client.get(request.path.partition("?")[0])).json()["metadata"]
        uid, version = metadata.get("uid", "none"), metadata.get("resourceVersion", "none")
        body = body.replace("{uid}", uid).replace("{version}", version)
    headers = {"content-type": request.content_type, "accept": "application/json", **request.headers}
    return await client.request(request.method, request.path, content=body, headers=headers)


def answer_of(response: httpx2.Response) -> Json:
    """What is compared."""
    try:
        body = response.json()
    except ValueError:
        return {"code": response.status_code}
    if response.status_code >= 400:
        return {"code": response.status_code, "reason": body.get("reason") or None, "causes": _causes(body)}
    return {"code": response.status_code, "object": _shown(body)}


def _causes(status: Json) -> list[str]:
    causes = (status.get("details") or {}).get("causes") or []
    return sorted({_cause(str(cause.get("field", "")), str(cause.get("message", ""))) for cause in causes})


def _cause(field: str, message: str) -> str:
    """Without the whole object that a patch would have made, and without the names that were generated."""
    if field == "patch":
        message = message.rpartition('": ')[2]
    text = _PREFIXED.sub("A_xxxxx", _UID.sub("UID", message.partition(_PODS_DIFF)[0]))
    return f"{field}: {text}"


def _shown(body: Json) -> Any:
    """Of a list the names, of a table the columns, of an object all that does not change from run to run."""
    if "items" in body:
        names = [item["metadata"]["name"] for item in body["items"]]
        return {"kind": body["kind"], "names": _stable(names), "more": bool(body["metadata"].get("continue"))}
    if body.get("kind") == "Table":
        return {"kind": "Table", "columns": [column["name"] for column in body["columnDefinitions"]]}
    if str(body.get("kind", "")).startswith("API"):
        return {"kind": body["kind"]}  # discovery: the kinds that are served are on a page of their own
    return _stable(body)


def _stable(body: Any) -> Any:
    if isinstance(body, dict):
        members = ((name, value) for name, value in sorted(body.items()) if name not in _VOLATILE)
        return {name: _stable(value) for name, value in members if value is not None}  # null is the same as absent
    if isinstance(body, list):
        return [_stable(item) for item in body]
    if isinstance(body, str):
        return _GENERATED.sub("made-xxxxx", _TIME.sub("TIME", body))
    return body
