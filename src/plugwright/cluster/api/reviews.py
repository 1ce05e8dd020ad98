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
_RULES = ("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview")
_ALL = (_SELF, _ACCESS, _RULES)
GROUPS = {group: [(plural, kind) for of, plural, kind in _ALL if of == group] for group, _, _ in _ALL}
PATHS = {f"/apis/{group}/v1/{plural}": kind for group, plural, kind in _ALL}
_EVERYTHING = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}
_ANSWERS: dict[str, Object] = {_SELF[2]: {"userInfo": _USER}, _ACCESS[2]: {"allowed": True}, _RULES[2]: _EVERYTHING}


async def review(request: Request, path: str) -> Response:
    if request.method != "POST":
        raise requests.not_allowed()
    asked, kind = await requests.received(request), PATHS[path]
    if not isinstance(asked, dict) or asked.get("kind", kind) != kind:
        raise bad_request(f"the body is no {kind}")
    group = path.split("/")[2]
    spec = asked.get("spec", {})
    if not isinstance(spec, dict):
        raise bad_request(f"{kind} has a spec")
    return answers.json(
        {"kind": kind, "apiVersion": f"{group}/v1", "metadata": {}, "spec": spec, "status": _ANSWERS[kind]}, 201
    )
