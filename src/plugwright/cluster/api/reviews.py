"""Who am I, and what may I do: questions that are asked by creating an object, and answered in it.

There is one user, whoever holds the token, and it may do everything.
"""

from starlette.requests import Request
from starlette.responses import Response

from plugwright.cluster.api import answers, requests
from plugwright.cluster.api.errors import bad_request
from plugwright.cluster.store import Object

__all__ = ["GROUPS", "PATHS", "review"]

_USER = {"username": "plugwright", "groups": ["system:masters", "system:authenticated"]}
_ACCESS = ("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
_SELF = ("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview")
GROUPS = {group: (plural, kind) for group, plural, kind in (_ACCESS, _SELF)}
PATHS = {f"/apis/{group}/v1/{plural}": kind for group, plural, kind in (_ACCESS, _SELF)}


async def review(request: Request, path: str) -> Response:
    if request.method != "POST":
        raise requests.not_allowed()
    asked, kind = await requests.received(request), PATHS[path]
    if not isinstance(asked, dict) or asked.get("kind", kind) != kind:
        raise bad_request(f"the body is no {kind}")
    group = path.split("/")[2]
    answer: Object = {"kind": kind, "apiVersion": f"{group}/v1", "metadata": {}}
    if kind == _SELF[2]:
        return answers.json({**answer, "status": {"userInfo": _USER}}, 201)
    spec = asked.get("spec")
    if not isinstance(spec, dict):
        raise bad_request(f"{kind} has a spec")
    return answers.json({**answer, "spec": spec, "status": {"allowed": True}}, 201)
