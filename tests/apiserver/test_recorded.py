"""Recorded requests of real kubectls, sent again; `recording` makes the recordings."""

import base64
import json
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from tests.apiserver.recording import RECORDED, STEPS
from tests.apiserver.serving import Answer, Api

SESSIONS = sorted(RECORDED.glob("kubectl-*.json"))


async def ask(api: Api, asked: dict[str, Any]) -> Answer:
    body = base64.b64decode(asked["base64"]) if "base64" in asked else asked.get("body")
    headers = {name.replace("-", "_"): value for name, value in asked["headers"].items()}
    return await api(asked["method"], asked["path"], body, **headers)


def test_two_versions_of_kubectl_are_recorded() -> None:
    assert len(SESSIONS) >= 2


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
async def test_every_request_is_answered_as_when_it_was_recorded(api: Api, session: Any) -> None:
    steps = json.loads(session.read_text())
    assert [step["kubectl"] for step in steps] == [arguments for arguments, _ in STEPS]
    for step in steps:
        for asked in step["asks"]:
            await _renew(api, asked)
            answer = await ask(api, asked)
            assert answer.code == asked["code"], (step["kubectl"], asked, answer.body)
            is_table = "as=Table" in asked["headers"].get("accept", "")
            assert answer.code >= 400 or not is_table or answer.body["kind"] == "Table"


async def _renew(api: Api, asked: dict[str, Any]) -> None:
    """Replaces recorded resource versions and continue tokens by current ones."""
    path, _, query = asked["path"].partition("?")
    asks = dict(parse_qsl(query))
    if "continue" in asks:
        listed = await api("GET", f"{path}?{urlencode({**asks, 'continue': ''})}")
        asked["path"] = f"{path}?{urlencode({**asks, 'continue': listed.body['metadata']['continue']})}"
    body = asked.get("body")
    metadata = body.get("metadata", {}) if isinstance(body, dict) else {}
    operations = body if isinstance(body, list) else []
    versioned = [one for one in operations if one["path"] == "/metadata/resourceVersion"]
    if "resourceVersion" in metadata or versioned:
        version = (await api("GET", path)).body["metadata"]["resourceVersion"]
        metadata |= {"resourceVersion": version} if metadata else {}
        for operation in versioned:
            operation["value"] = version
