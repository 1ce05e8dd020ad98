"""The commands of docs/operations.md: which of them `test_day` plays one by one, which others a test plays, and why
some are not played."""

from tests.kubernetes.documented import Page

__all__ = ["NOT_PLAYED", "PAGE", "PLAYED_BY", "POD", "commands"]

PAGE = Page("operations.md")
POD = PAGE.command("What to watch", "POD=")

# By the beginning of a command: the test that plays it, since it needs a state of its own.
PLAYED_BY = {
    "POD=": "test_day.py::_plays_the_runbook",
    "plugwright cordon mock/gpu": "test_day.py::_cordons",
    "plugwright cordon list": "test_day.py::_cordons",
    "plugwright uncordon mock/gpu": "test_day.py::test_the_day_by_helm",
    "plugwright log-level": "test_day.py::_cordons",
    "plugwright node-events --clear": "test_node_events.py::test_its_conditions_are_removed_by_the_documented_command",
    "kubectl logs -n plugwright ds/plugwright": "test_day.py::_starts_the_pod_of_the_page",
    "kubectl rollout status ds/plugwright -n plugwright --timeout 5s": "test_day.py::_meets_a_refused_file",
    "kubectl drain": "test_day.py::test_the_day_by_helm",
    "kubectl uncordon": "test_day.py::test_the_day_by_helm",
    "helm uninstall": "test_day.py::test_the_day_by_helm",
}
NOT_PLAYED = {
    "kubectl debug node/X": "the node of the tests has neither a registry nor a PCI bus with cards",
    "journalctl -u kubelet": "the kubelet of the tests is no unit of systemd",
    "plugwright node remove --stale": "test_node_commands.py plays it, with a resource of its own",
}


def commands() -> list[str]:
    """Those that must end well on a healthy node; each once."""
    others = (*PLAYED_BY, *NOT_PLAYED)
    return [each for each in dict.fromkeys(PAGE.commands()) if not each.startswith(others)]
