"""Pods and other objects, right and wrong: answered as a real API server did when `test_differences` recorded it."""

import json

from tests.apiserver.serving import Api
from tests.kubernetes.differences import requests
from tests.kubernetes.differences.playing import play


async def test_requests_are_answered_as_by_a_real_api_server(api: Api) -> None:
    recorded = json.loads(requests.RECORDED.read_text())
    await play(api.client, requests.beginning())
    answers = await play(api.client, requests.pods_and_particular())
    assert len(recorded) > 400
    assert {name: answers[name] for name in recorded} == recorded
