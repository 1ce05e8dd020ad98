"""A pod's status in one word, as `kubectl get pods` shows it. Pure."""

from collections.abc import Callable

from plugwright.cluster.store import Object

__all__ = ["pod_cells"]


def pod_cells(pod: Object, age: Callable[[object], str]) -> tuple[str, str, str, str, str]:
    """Ready, status, restarts, address and node."""
    status, spec = pod.get("status") or {}, pod["spec"]
    containers = status.get("containerStatuses") or []
    inits = status.get("initContainerStatuses") or []
    ready = sum(bool(each.get("ready")) and "running" in each.get("state", {}) for each in containers)
    restarts = sum(int(each.get("restartCount", 0)) for each in containers)
    word = status.get("reason") or status.get("phase") or "Unknown"
    word = _initialising(spec, inits) or _waiting(containers) or word
    if pod["metadata"].get("deletionTimestamp"):
        word = "Terminating"
    return (
        f"{ready}/{len(spec.get('containers') or [])}",
        word,
        _restarts(restarts, containers, age),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
    )


def _initialising(spec: Object, inits: list[Object]) -> str:
    sidecars = {each["name"] for each in spec.get("initContainers") or [] if each.get("restartPolicy") == "Always"}
    for index, each in enumerate(inits):
        state = each.get("state", {})
        if state.get("terminated", {}).get("exitCode") == 0 and "terminated" in state:
            continue
        if each["name"] in sidecars and each.get("started"):
            continue
        reason = state.get("waiting", {}).get("reason") or state.get("terminated", {}).get("reason")
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{index}/{len(spec.get('initContainers') or [])}"
    return ""


def _waiting(containers: list[Object]) -> str:
    for each in reversed(containers):
        state = each.get("state", {})
        reason = state.get("waiting", {}).get("reason") or state.get("terminated", {}).get("reason")
        if reason:
            return str(reason)
    return ""


def _restarts(count: int, containers: list[Object], age: Callable[[object], str]) -> str:
    ends = [each.get("lastState", {}).get("terminated", {}).get("finishedAt") for each in containers]
    last = max((each for each in ends if each), default=None)
    return f"{count} ({age(last)} ago)" if count and last else str(count)
