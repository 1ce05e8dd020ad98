"""Credential plugins: the `exec` entry of a kubeconfig, as clouds have it (`aws eks get-token` and the like).

Loaded only for a kubeconfig; a daemon in a pod has none.
"""

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from plugwright.errors import ConfigError
from plugwright.kube.credentials import IssuedCredentials

__all__ = ["CredentialPlugin", "ExecEntry"]

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_LIMIT, _INTERACTIVE_LIMIT = 60.0, 300.0  # seconds; interactive plugins wait for a person
_OUTPUT_LIMIT = 2**20  # bytes
_KEPT = 4096  # last bytes of the standard error
_EARLY = timedelta(seconds=30)
_NEVER = datetime.max.replace(tzinfo=UTC)


class _Variable(msgspec.Struct):
    name: str
    value: str = ""


class ExecEntry(msgspec.Struct, rename="camel", kw_only=True):
    """The `exec` entry of a user in a kubeconfig; `command` is absolute or to be found in the PATH."""

    api_version: str = ""
    command: str = ""
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _Answer(msgspec.Struct, rename="camel"):
    kind: str
    api_version: str
    status: _Status


class CredentialPlugin:
    """A `credentials.Issuer`; `cluster` is sent to a plugin on request, by `provideClusterInfo`."""

    def __init__(self, entry: ExecEntry, cluster: dict[str, object]) -> None:
        if entry.api_version not in _VERSIONS:
            versions = " or ".join(_VERSIONS)
            raise ConfigError(f"apiVersion of exec in the kubeconfig must be {versions}, got {entry.api_version!r}")
        if not entry.command:
            raise ConfigError("exec in the kubeconfig must have a command")
        self._entry, self._cluster = entry, cluster if entry.provide_cluster_info else None
        self._is_interactive = self._may_ask()
        self.limit = _INTERACTIVE_LIMIT if self._is_interactive else _LIMIT
        self.issued, self._until = IssuedCredentials(), datetime.min.replace(tzinfo=UTC)
        self._running = threading.Lock()

    def _may_ask(self) -> bool:
        """Whether the plugin gets the terminal."""
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        mode = self._entry.interactive_mode
        if mode not in ("Never", "IfAvailable", "Always"):
            raise ConfigError(f"interactiveMode of exec must be Never, IfAvailable or Always, got {mode!r}")
        if mode == "Always" and not is_terminal:
            raise ConfigError(f"{self._entry.command} needs a terminal, as interactiveMode in the kubeconfig is Always")
        return mode != "Never" and is_terminal

    def is_fresh(self) -> bool:
        return datetime.now(UTC) < self._until

    def login(self) -> None:
        """Runs the plugin unless its last credentials are still valid for a while."""
        with self._running:
            if not self.is_fresh():
                self.issued, self._until = self._issue()

    def reject(self) -> None:
        self._until = datetime.min.replace(tzinfo=UTC)

    def _issue(self) -> tuple[IssuedCredentials, datetime]:
        name, version = self._entry.command, self._entry.api_version
        try:
            answer = msgspec.json.decode(self._run(), type=_Answer)
            parts = (answer.status.client_certificate_data, answer.status.client_key_data)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"cannot get credentials: {name} must print an ExecCredential: {error!s:.200}") from error
        if (answer.kind, answer.api_version) != ("ExecCredential", version):
            raise ConfigError(
                f"cannot get credentials: {name} must print an ExecCredential of {version}, "
                f"got {answer.kind!r:.40} of {answer.api_version!r:.80}"
            )
        status = answer.status
        if not status.token and not all(parts):
            raise ConfigError(f"cannot get credentials: {name} must print a token, or a client certificate and its key")
        until = status.expiration_timestamp
        certificate, key = (part.encode() or None for part in parts)
        return IssuedCredentials(status.token, certificate, key), until - _EARLY if until else _NEVER

    def _run(self) -> bytes:
        """The output of the plugin; with a terminal, a plugin prints its errors there."""
        name, pipe = self._entry.command, subprocess.PIPE
        try:
            process = subprocess.Popen(
                [name, *(self._entry.args or ())],
                env=self._environment(),
                stdin=None if self._is_interactive else subprocess.DEVNULL,
                stdout=pipe,
                stderr=None if self._is_interactive else pipe,
                start_new_session=not self._is_interactive,
            )
        except OSError as error:
            hint = f"; {self._entry.install_hint.strip()}" if self._entry.install_hint else ""
            raise ConfigError(f"cannot get credentials by {name}: {error}{hint}") from error
        with process:
            try:
                output, words = _collect(process, self.limit)
            except OSError as error:
                raise ConfigError(f"cannot get credentials: {name} {error}") from error
            finally:
                self._end(process)
        if process.returncode != 0:
            raise ConfigError(f"cannot get credentials: {name} ended with {process.returncode}: {words}")
        return output

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """Kills a running plugin, with its children if they are a session."""
        if process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                if self._is_interactive:
                    process.kill()
                else:
                    os.killpg(process.pid, signal.SIGKILL)

    def _environment(self) -> dict[str, str]:
        specification: dict[str, object] = {"interactive": self._is_interactive}
        if self._cluster is not None:
            specification["cluster"] = self._cluster
        request = {"kind": "ExecCredential", "apiVersion": self._entry.api_version, "spec": specification}
        variables = {variable.name: variable.value for variable in self._entry.env or ()}
        return {**os.environ, **variables, "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}


def _collect(process: "subprocess.Popen[bytes]", limit: float) -> tuple[bytes, str]:
    """The output of a process until it ends, and the end of its standard error; raises `OSError` beyond a limit."""
    deadline, output, words = time.monotonic() + limit, b"", b""
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"did not end within {limit:g} s")
            for key, _ in ready:
                part = os.read(key.fd, 65536)
                if not part:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    output += part
                else:
                    words = (words + part)[-_KEPT:]
            if len(output) > _OUTPUT_LIMIT:
                raise OSError(f"must print at most {_OUTPUT_LIMIT} bytes, got {len(output)} or more")
    try:
        process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"did not end within {limit:g} s") from None
    return output, words.decode(errors="replace").strip()[-300:]
