"""The event of a waiting pod: one for each answer, from the callable that the caller passes."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.embedding import Lab, embedded

from plugwright.cli.up import first_line_of


def said(lab: Lab, name: str) -> list[str]:
    return [text for reason, text in lab.events(name) if reason == "WaitsForDevices"]


async def test_the_first_line_of_why_is_an_event_of_a_waiting_pod() -> None:
    async with embedded(explain=first_line_of) as lab:
        await lab.offered()
        lab.create("train", {"mock/gpu": "11"})
        await lab.cluster.until(lambda: bool(said(lab, "train")))
        first = "waits: no node has 11 free mock/gpu (node-1 has 10 of 10 mock/gpu free)"
        assert said(lab, "train") == [first]


async def test_an_explanation_that_fails_does_not_end_the_others() -> None:
    def explain(objects: Mapping[str, Sequence[Any]], pod: Mapping[str, Any]) -> str:
        if pod["metadata"]["name"] == "bad":
            raise KeyError("spec")
        return f"waits for {pod['metadata']['name']}"

    async with embedded(explain=explain) as lab:
        await lab.offered()
        for name in ("bad", "good"):
            lab.create(name, {"mock/gpu": "11"})
        await lab.cluster.until(lambda: said(lab, "good") == ["waits for good"])
        assert said(lab, "bad") == []


async def test_a_pod_that_is_scheduled_has_no_such_event() -> None:
    async with embedded(explain=first_line_of) as lab:
        await lab.offered()
        lab.create("waits", {"mock/gpu": "11"})
        lab.create("runs", {"mock/gpu": "1"})
        await lab.phase("runs")
        await lab.cluster.until(lambda: bool(said(lab, "waits")))
        assert said(lab, "runs") == []
