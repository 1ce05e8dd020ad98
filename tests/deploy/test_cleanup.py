"""What runs after an uninstall: it goes only when the nodes are clean, and takes itself away last."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.deploy.rendered import CHART

pytest.importorskip("lightkube", reason="the clean-up needs the extra `cluster`")

CRONJOB = "/apis/batch/v1/namespaces/devices/cronjobs/gone"
DAEMON_SET = "/apis/apps/v1/namespaces/devices/daemonsets/devices"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gone"
ADOPTED = [
    "/api/v1/namespaces/devices/serviceaccounts/gone",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/gone",
    CRONJOB,
]
REQUIRED = {
    "spec": {"schedule": "* * * * *", "jobTemplate": {}, "selector": {}, "template": {}},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gone"},
}


class Api:
    """As much of an API server as the clean-up asks for, and what it was asked."""

    def __init__(self) -> None:
        self.born = datetime.now(UTC)
        self.installed = False
        self.calls: list[tuple[str, str]] = []
        self.owners: list[object] = []

    def answer(self, method: str, path: str, body: bytes) -> dict[str, object]:
        place = path.partition("?")[0]
        if place == DAEMON_SET and not self.installed:
            return {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
        self.calls.append((method, place))
        if method == "PATCH":
            self.owners += json.loads(body)["metadata"]["ownerReferences"]
        kind = "ClusterRole" if place == ROLE else "CronJob"
        group = "rbac.authorization.k8s.io/v1" if place == ROLE else "batch/v1"
        metadata = {"name": "gone", "uid": "u-1", "creationTimestamp": self.born.strftime("%Y-%m-%dT%H:%M:%SZ")}
        return {"apiVersion": group, "kind": kind, "metadata": metadata, **REQUIRED}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    served = Api()

    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline()
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = served.answer(self.command, self.path, body)
            answer = json.dumps(found).encode()
            self.send_response(404 if found["kind"] == "Status" else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        _kubeconfig(tmp_path / "kubeconfig", server.server_port)
        yield served
        server.shutdown()
        thread.join()


def _kubeconfig(path: Path, port: int) -> None:
    cluster = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "here", "context": {"cluster": "here", "user": "me"}}
    content = {"apiVersion": "v1", "kind": "Config", "current-context": "here", "clusters": [cluster]}
    path.write_text(json.dumps({**content, "contexts": [context], "users": [{"name": "me", "user": {}}]}))


def clean_up(tmp_path: Path, end: str = "exit 0", hours: str = "24") -> subprocess.CompletedProcess[str]:
    """Runs it with a `plugwright` that notes its arguments and ends as told."""
    program = tmp_path / "bin" / "plugwright"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{end}\n')
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "KUBECONFIG": str(tmp_path / "kubeconfig")}
    script = (CHART / "files" / "cleanup.py").read_text()
    command = [sys.executable, "-c", script, "devices", "gone", hours, "devices", "a.b/c", "d.e/f"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_resources_of_the_release_are_removed_from_all_nodes(api: Api, tmp_path: Path) -> None:
    result = clean_up(tmp_path)
    assert result.returncode == 0, result.stderr
    asked = (tmp_path / "asked").read_text().strip()
    assert asked == "node remove --stale --all-nodes --wait --resource a.b/c --resource d.e/f"


def test_everything_it_had_goes_with_its_role_which_goes_last(api: Api, tmp_path: Path) -> None:
    clean_up(tmp_path)
    assert [path for method, path in api.calls if method == "PATCH"] == ADOPTED
    assert api.calls[-1] == ("DELETE", ROLE)
    owner = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "gone", "uid": "u-1"}
    assert api.owners == [owner] * len(ADOPTED)


def test_it_stays_for_another_try_where_a_node_is_not_clean(api: Api, tmp_path: Path) -> None:
    assert clean_up(tmp_path, "exit 1").returncode == 1
    assert api.calls == [("GET", CRONJOB)]


def test_it_gives_up_after_its_time_and_goes(api: Api, tmp_path: Path) -> None:
    api.born -= timedelta(hours=3)
    assert clean_up(tmp_path, "exit 1", hours="2.5").returncode == 0
    assert api.calls[-1] == ("DELETE", ROLE)


def test_it_goes_at_once_where_the_release_is_installed_again(api: Api, tmp_path: Path) -> None:
    api.installed = True
    result = clean_up(tmp_path, "exec sleep 600")
    assert (result.returncode, result.stderr) == (0, "installed again: nothing is to be removed\n")
    assert api.calls[-1] == ("DELETE", ROLE)
