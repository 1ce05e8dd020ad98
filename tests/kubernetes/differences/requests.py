"""All requests that are played, and the answers that both API servers gave to them.

The recorded answers are a real API server's: the tests of the embedded one need none.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tests.kubernetes.differences.container_specs import CONTAINER_SPECS
from tests.kubernetes.differences.every_kind import NAMESPACE, every_kind
from tests.kubernetes.differences.newer_groups import newer_groups
from tests.kubernetes.differences.particular import particular
from tests.kubernetes.differences.playing import Json, Played
from tests.kubernetes.differences.pod_specs import POD_SPECS

__all__ = ["RECORDED", "SPECS", "all_requests", "beginning", "pods_and_particular", "record"]

RECORDED = Path(__file__).parents[2] / "apiserver" / "recorded" / "api-server-1.36.4.json"
SPECS = {**CONTAINER_SPECS, **POD_SPECS}


def beginning() -> Iterator[Played]:
    """A namespace with the account that the controller manager would make, without a token in each pod."""
    account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
    yield Played("namespace", "POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    yield Played("account", "POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)


def pods_and_particular() -> Iterator[Played]:
    for number, (name, spec) in enumerate(SPECS.items()):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": spec}
        yield Played(name, "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    yield from particular()
    yield from newer_groups()


def all_requests() -> Iterator[Played]:
    yield from pods_and_particular()
    yield from every_kind()


def record(real: dict[str, Json], embedded: dict[str, Json]) -> None:
    """The answers that do not differ, of requests that the tests without a real API server play."""
    names = [request.name for request in pods_and_particular() if real[request.name] == embedded[request.name]]
    lines = (f"{json.dumps(name)}: {json.dumps(real[name], sort_keys=True)}" for name in names)
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
