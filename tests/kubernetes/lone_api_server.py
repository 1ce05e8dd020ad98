"""A real kube-apiserver with its etcd and nothing else: for what is written and read there, without a node.

It is up in seconds, listens on loopback, and may have feature gates of its own.
"""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kubernetes import building

from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import ApiClient
from plugwright.kube.credentials import Credentials

__all__ = ["LoneApiServer", "lone_api_server"]

_TOKEN = "administrator"
_LIMIT = 60.0  # seconds until it is ready


class LoneApiServer:
    """The administrator's `client`, and the two processes."""

    def __init__(self, directory: Path, version: str, gates: str) -> None:
        self._directory, self._gates = directory, gates
        self._programs = {name: building.build(building.kubernetes(version)) / name for name in ("kube-apiserver",)}
        self._programs["etcd"] = building.build(building.ETCD) / "etcd"
        self._port, self._etcd, self._peer = free_ports(3)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        keys = directory / "keys"
        keys.mkdir()
        private, public = keys / "sa.key", keys / "sa.pub"
        subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
        (directory / "tokens.csv").write_text(f'{_TOKEN},admin,1,"system:masters"\n')

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def token(self) -> str:
        return _TOKEN

    @property
    def certificate(self) -> Path:
        return self._directory / "keys" / "apiserver.crt"

    def client(self) -> ApiClient:
        return ApiClient(ClusterAccess(self.url, Credentials(_TOKEN, self.certificate)))

    async def start(self) -> None:
        etcd, keys = f"http://127.0.0.1:{self._etcd}", self._directory / "keys"
        if "etcd" not in self._processes:
            self._run(
                "etcd", "--data-dir", str(self._directory / "etcd"), "--unsafe-no-fsync",
                "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
                "--listen-peer-urls", f"http://127.0.0.1:{self._peer}",
            )  # fmt: skip
        self._run(
            "kube-apiserver", f"--etcd-servers={etcd}", f"--cert-dir={keys}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--secure-port={self._port}", "--endpoint-reconciler-type=none",
            "--allow-privileged=true",  # as every distribution has it
            "--service-cluster-ip-range=198.18.1.0/24", "--service-account-issuer=https://kubernetes.default",
            f"--service-account-key-file={keys / 'sa.pub'}", f"--service-account-signing-key-file={keys / 'sa.key'}",
            f"--token-auth-file={self._directory / 'tokens.csv'}", "--authorization-mode=RBAC",
            *([f"--feature-gates={self._gates}"] if self._gates else []),
        )  # fmt: skip
        await self._ready()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """The API server alone: etcd keeps what it has."""
        process = self._processes["kube-apiserver"]
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _run(self, name: str, *arguments: str) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            command = [str(self._programs[name]), *arguments]
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    async def _ready(self) -> None:
        """Returns when it has all that it makes for itself: namespaces, roles, priority classes."""
        async with asyncio.timeout(_LIMIT):
            while not await asyncio.to_thread(self._is_ready):
                assert all(process.poll() is None for process in self._processes.values()), self._last_words()
                await asyncio.sleep(0.1)

    def _is_ready(self) -> bool:
        return all(map(self._is_served, ("/readyz", "/api/v1/namespaces/default")))

    def _is_served(self, path: str) -> bool:
        request = urllib.request.Request(f"{self.url}{path}", headers={"authorization": f"Bearer {_TOKEN}"})
        try:
            trust = ssl.create_default_context(cafile=self.certificate)
            with urllib.request.urlopen(request, context=trust) as answer:
                return bool(answer.status == 200)
        except OSError:  # no certificate yet, nobody listens, or it is not ready
            return False

    def _last_words(self) -> str:
        return (self._directory / "kube-apiserver.log").read_text()[-2000:]


@asynccontextmanager
async def lone_api_server(directory: Path, gates: str = "") -> AsyncIterator[LoneApiServer]:
    version = os.environ.get("PLUGWRIGHT_KUBERNETES_VERSION") or building.DEFAULT_VERSION
    server = LoneApiServer(directory, version, gates)
    try:
        await server.start()
        yield server
    finally:
        server.end()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
