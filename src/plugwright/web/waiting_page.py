"""The view of pods that wait for devices, each with the answer of `plugwright why`."""

from collections.abc import Iterator, Sequence

from plugwright.explain.explanation import Explanation
from plugwright.explain.world import ApiObject, identity
from plugwright.fleet.claim_users import text_of
from plugwright.fleet.counts import device_requests
from plugwright.web.live_fleet import LiveFleet
from plugwright.web.markup import Html, command, moment, table, text
from plugwright.web.pod_answers import PodAnswer, PodAnswers
from plugwright.web.rendering import Rendering

__all__ = ["WaitingPage"]

_MOST_EXPLAINED, _MOST_SHOWN = 20, 200
_MOST_EVIDENCE = 5
_COLUMNS = ["Pod", "Why it waits", "Requests", "Since", "Command"]


class WaitingPage:
    title = "Waiting pods"

    def __init__(self, answers: PodAnswers) -> None:
        self._answers = answers

    def render(self, fleet: LiveFleet) -> Rendering:
        waiting = sorted(fleet.waiting_pods(), key=lambda pod: (_since(pod), identity(pod)))
        rows = [self._row(pod, number < _MOST_EXPLAINED) for number, pod in enumerate(waiting[:_MOST_SHOWN])]
        listed = table("Pods that wait for devices", _COLUMNS, rows, "No pod waits for devices.")
        more = f"<p>{len(waiting) - _MOST_SHOWN} more</p>" if len(waiting) > _MOST_SHOWN else ""
        count = f"{len(waiting):,} waiting {'pod' if len(waiting) == 1 else 'pods'}"
        return Rendering(f'<h1>Waiting pods</h1><div role="status"><p>{count}</p></div>{listed}{more}')

    def _row(self, pod: ApiObject, is_explained: bool) -> Sequence[Html]:
        namespace, name = identity(pod)
        why = _why(self._answers.of(pod)) if is_explained else "See the command."
        wants = [f"{count} {resource}" for resource, count in device_requests(pod).items()]
        wants += [f"claim {text_of(one.get('name'))}" for one in (pod.get("spec") or {}).get("resourceClaims") or ()]
        line = command("kubectl", "plugwright", "why", "-n", namespace, name)
        return text(f"{namespace}/{name}"), why, text(", ".join(wants)), moment(_since(pod)), line


def _since(pod: ApiObject) -> str:
    return text_of((pod.get("metadata") or {}).get("creationTimestamp"))


def _why(answer: PodAnswer | None) -> Html:
    if answer is None:
        return "Being worked out …"
    if answer.explanation is None:
        return text(f"The answer is unknown: {answer.problem}")
    return "".join(_explained(answer.explanation))


def _explained(explanation: Explanation) -> Iterator[Html]:
    yield text(explanation.answer.removeprefix("waits: "), 1000)
    evidence = "".join(
        f"<li>{group.count} {'node' if group.count == 1 else 'nodes'}: {text(group.text)}</li>"
        for group in explanation.evidence[:_MOST_EVIDENCE]
    )
    cures = "".join(
        f"<li>It {text(cure.text)}{''.join(f'<br><code>{text(line, 1000)}</code>' for line in cure.commands)}</li>"
        for cure in explanation.cures
    )
    if evidence or cures:
        yield f"<details><summary>Nodes and changes</summary><ul>{evidence}{cures}</ul></details>"
