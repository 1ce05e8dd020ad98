"""The real etcd, kube-apiserver, scheduler and controller-manager on loopback, without a node and without root.

Nodes are for others to bring: `plugwright join`. There is an administrator's kubeconfig. The API server has a client
certificate for kubelets, as in clusters that installers make.
"""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trustme
from tests.kubernetes import building
from tests.kubernetes.lone_api_server import free_ports

__all__ = ["ControlPlane", "control_plane"]

CONTEXT = "real"
_LIMIT = 60.0  # seconds
_POLL = 0.1


class ControlPlane:
    """`flags` are more of them for a program, by its name; they win over ours."""

    token = "administrator"

    def __init__(self, directory: Path, version: str, flags: Mapping[str, Sequence[str]]) -> None:
        self.directory, self.version, self._flags = directory, version, flags
        self.kubeconfig = directory / "admin.conf"
        self.port, self._etcd, self._peer, self._manager, self._scheduler = free_ports(5)
        self._bin = building.build(building.kubernetes(version))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._keys = directory / "keys"
        self._keys.mkdir()
        self._write_keys()
        self.kubeconfig.write_text(self.kubeconfig_of(self.token))

    def start(self) -> None:
        self._run(
            building.build(building.ETCD) / "etcd", "--data-dir", str(self.directory / "etcd"), "--unsafe-no-fsync",
            "--listen-client-urls", self._etcd_url, "--advertise-client-urls", self._etcd_url,
            "--listen-peer-urls", f"http://127.0.0.1:{self._peer}",
        )  # fmt: skip
        self.start_api_server()
        admin = self.kubeconfig
        self._run(
            self._bin / "kube-controller-manager", f"--kubeconfig={admin}", f"--authentication-kubeconfig={admin}",
            f"--authorization-kubeconfig={admin}", "--leader-elect=false", "--bind-address=127.0.0.1",
            f"--secure-port={self._manager}", f"--service-account-private-key-file={self._keys / 'sa.key'}",
            f"--root-ca-file={self._keys / 'apiserver.crt'}", "--use-service-account-credentials",
            "--node-monitor-grace-period=8s", "--node-monitor-period=1s",
        )  # fmt: skip
        self._run(
            self._bin / "kube-scheduler", f"--kubeconfig={admin}", f"--authentication-kubeconfig={admin}",
            f"--authorization-kubeconfig={admin}", "--leader-elect=false", "--bind-address=127.0.0.1",
            f"--secure-port={self._scheduler}",
        )  # fmt: skip
        self.until(lambda: self.get("serviceaccount", "default"), "pods can be created")

    def start_api_server(self) -> None:
        keys = self._keys
        self._run(
            self._bin / "kube-apiserver", f"--etcd-servers={self._etcd_url}", f"--cert-dir={keys}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self.port}",
            "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default", f"--service-account-key-file={keys / 'sa.pub'}",
            f"--service-account-signing-key-file={keys / 'sa.key'}", f"--token-auth-file={keys / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC", "--allow-privileged=true", f"--client-ca-file={keys / 'clients.crt'}",
            f"--kubelet-client-certificate={keys / 'kubelet-client.crt'}",
            f"--kubelet-client-key={keys / 'kubelet-client.key'}",
        )  # fmt: skip
        self.until(lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok", "the API server is ready")

    def kill_api_server(self) -> None:
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def end(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()

    def kubectl(self, *words: object, stdin: str | None = None, check: bool = True) -> str:
        """What it prints; without `check` also where it fails."""
        command = [str(self._bin / "kubectl"), "--kubeconfig", str(self.kubeconfig), *map(str, words)]
        done = subprocess.run(command, check=False, input=stdin, capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def apply(self, *documents: dict[str, Any]) -> None:
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        self.kubectl("apply", "-f", "-", stdin=content)

    def get(self, *words: str) -> dict[str, Any]:
        """An object or a list; empty where there is none."""
        text = self.kubectl("get", *words, "-o", "json", check=False)
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def items(self, *words: str) -> list[dict[str, Any]]:
        return list(self.get(*words).get("items") or ())

    def until(self, fact: Callable[[], object], what: str, limit: float = _LIMIT) -> None:
        end = time.monotonic() + limit
        while not fact():
            assert time.monotonic() < end, f"{what}: not within {limit:g} s\n{self.kubectl('get', 'pods,nodes', '-A')}"
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            assert not dead, "\n".join((self.directory / f"{name}.log").read_text()[-2000:] for name in dead)
            time.sleep(_POLL)

    async def waited(self, fact: Callable[[], object], what: str, limit: float = _LIMIT) -> None:
        """As `until`, while the event loop goes on."""
        await asyncio.to_thread(self.until, fact, what, limit)

    def kubeconfig_of(self, token: str) -> str:
        cluster = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": str(self.certificate),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": CONTEXT,
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": "real", "user": "me"}}],
        }
        return json.dumps(document)

    @property
    def certificate(self) -> Path:
        return self._keys / "apiserver.crt"

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    @property
    def _etcd_url(self) -> str:
        return f"http://127.0.0.1:{self._etcd}"

    def _write_keys(self) -> None:
        private, public = self._keys / "sa.key", self._keys / "sa.pub"
        subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self._keys / "clients.crt")
        client = authority.issue_cert(common_name="apiserver-kubelet-client", organization_name="system:masters")
        client.cert_chain_pems[0].write_to_path(self._keys / "kubelet-client.crt")
        client.private_key_pem.write_to_path(self._keys / "kubelet-client.key")
        tokens = f'{self.token},admin,1,"system:masters"\nnobody,nobody,2\n'
        (self._keys / "tokens.csv").write_text(tokens)

    def _run(self, program: Path, *arguments: str) -> None:
        with (self.directory / f"{program.name}.log").open("ab") as log:
            command = [str(program), *arguments, *self._flags.get(program.name, ())]
            self._processes[program.name] = subprocess.Popen(command, stdout=log, stderr=log)


@contextmanager
def control_plane(directory: Path, flags: Mapping[str, Sequence[str]] | None = None) -> Iterator[ControlPlane]:
    version = os.environ.get("PLUGWRIGHT_KUBERNETES_VERSION") or building.DEFAULT_VERSION
    plane = ControlPlane(directory, version, flags or {})
    try:
        plane.start()
        yield plane
    finally:
        with suppress(OSError):
            plane.end()
