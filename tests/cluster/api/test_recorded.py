"""What real kubectls were heard to ask, asked again: see `recording`."""

import base64
import json
from typing import Any

import pytest
from tests.cluster.api.recording import RECORDED, STEPS
from tests.cluster.api.serving import Answer, Api

SESSIONS = sorted(RECORDED.glob("kubectl-*.json"))


async def ask(api: Api, asked: dict[str, Any]) -> Answer:
    body = base64.b64decode(asked["base64"]) if "base64" in asked else asked.get("body")
    headers = {name.replace("-", "_"): value for name, value in asked["headers"].items()}
    return await api(asked["method"], asked["path"], body, **headers)


def test_two_versions_were_heard() -> None:
    assert len(SESSIONS) >= 2


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
async def test_every_request_is_answered_as_when_it_was_heard(api: Api, session: Any) -> None:
    steps = json.loads(session.read_text())
    assert [step["kubectl"] for step in steps] == [arguments for arguments, _ in STEPS]
    for step in steps:
        for asked in step["asks"]:
            asked["path"] = _again(asked["path"])
            answer = await ask(api, asked)
            assert answer.code == asked["code"], (step["kubectl"], asked, answer.body)
            wanted = "as=Table" in asked["headers"].get("accept", "")
            assert answer.code >= 400 or not wanted or answer.body["kind"] == "Table"


def _again(path: str) -> str:
    """Names and tokens that were made up are made up anew: such a request is asked without them."""
    return path.partition("&continue=")[0] if "continue=" in path else path
