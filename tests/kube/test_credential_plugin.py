"""Credential plugins as real programs, of both versions of their API."""

import json
import os
import pty
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kube.recording import kubeconfig, read_node, recording, write_authority

from plugwright.errors import ConfigError, PeerRefused
from plugwright.kube.access import ClusterAccess
from plugwright.kube.credential_plugin import CredentialPlugin, ExecEntry

V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"

LOGIN = """
import sys
from pathlib import Path
from plugwright.kube.access import ClusterAccess

access = ClusterAccess.of_kubeconfig(Path(sys.argv[1]))
access.login()
print(access.credentials.headers())
"""


def plugin(directory: Path, script: str, version: str = V1, **entry: Any) -> dict[str, Any]:
    """The user of a kubeconfig with a plugin in its directory."""
    path = directory / "credentials"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return {"exec": {"apiVersion": version, "command": "./credentials", "interactiveMode": "Never", **entry}}


def issuing(version: str = V1, **status: str) -> str:
    document = {"kind": "ExecCredential", "apiVersion": version, "status": {"token": "secret", **status}}
    return f"cat <<'END'\n{json.dumps(document)}\nEND"


def made(directory: Path, script: str, **entry: Any) -> CredentialPlugin:
    user = plugin(directory, script, **entry)["exec"]
    names = {"apiVersion": "api_version", "command": "command", "interactiveMode": "interactive_mode"}
    found = ExecEntry(**{names[name]: text for name, text in user.items() if name in names})
    found.command = str(directory / "credentials")
    return CredentialPlugin(found, {})


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_a_plugin_gives_the_token(tmp_path: Path, version: str) -> None:
    asked = tmp_path / "asked"
    script = f'printf "%s\\n" "$KUBERNETES_EXEC_INFO" "$NAME" "$@" > {asked}\n{issuing(version)}'
    user = plugin(tmp_path, script, version, args=["get", "a b"], env=[{"name": "NAME", "value": "value"}])
    with recording() as server:
        read_node(kubeconfig(tmp_path, {"server": server.url}, user), times=3)
    assert server.values("Authorization") == ["Bearer secret"]
    info, *others = asked.read_text().splitlines()
    assert json.loads(info) == {"kind": "ExecCredential", "apiVersion": version, "spec": {"interactive": False}}
    assert others == ["value", "get", "a b"]


def test_a_plugin_that_asks_for_the_cluster_gets_it(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    _, context = write_authority(tmp_path)
    user = plugin(tmp_path, f'echo "$KUBERNETES_EXEC_INFO" > {asked}\n{issuing()}', provideClusterInfo=True)
    with recording(context) as server:
        cluster = {
            "server": server.url,
            "certificate-authority": "ca.crt",
            "tls-server-name": "127.0.0.1",
            "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}],
        }
        read_node(kubeconfig(tmp_path, cluster, user))
    found = json.loads(asked.read_text())["spec"]["cluster"]
    assert found.pop("certificate-authority-data").startswith("LS0t")
    assert found == {"server": server.url, "tls-server-name": "127.0.0.1", "config": {"audience": "x"}}


@pytest.mark.parametrize(("expiry", "runs"), [("2999-01-01T00:00:00Z", 1), ("2020-01-01T00:00:00+02:00", 3)])
def test_a_plugin_is_run_again_when_its_token_is_about_to_expire(tmp_path: Path, expiry: str, runs: int) -> None:
    counted = tmp_path / "counted"
    user = plugin(tmp_path, f"echo >> {counted}\n{issuing(expirationTimestamp=expiry)}")
    with recording() as server:
        read_node(kubeconfig(tmp_path, {"server": server.url}, user), times=3)
    assert len(counted.read_text()) == runs


def test_a_plugin_is_run_again_after_the_server_rejects_its_token(tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    user = plugin(tmp_path, f"echo >> {counted}\n{issuing()}")
    with recording() as server:
        server.code = 401
        with pytest.raises(PeerRefused, match="the token may have expired"):
            read_node(kubeconfig(tmp_path, {"server": server.url}, user))
        access = ClusterAccess.of_kubeconfig(tmp_path / "kubeconfig", environment={})
        assert access is not None
        access.login()
        access.rejected()
        access.login()
    assert len(counted.read_text()) == 3


def test_a_plugin_may_issue_a_client_certificate(tmp_path: Path) -> None:
    authority, context = write_authority(tmp_path, ask=True)
    mine = authority.issue_cert("me@example.com")
    certificate, key = mine.cert_chain_pems[0].bytes().decode(), mine.private_key_pem.bytes().decode()
    user = plugin(tmp_path, issuing(token="", clientCertificateData=certificate, clientKeyData=key))
    with recording(context) as server:
        read_node(kubeconfig(tmp_path, {"server": server.url, "certificate-authority": "ca.crt"}, user))
    assert "me@example.com" in server.clients[-1]
    assert server.values("Authorization") == []


def test_a_token_is_preferred_to_a_plugin(tmp_path: Path) -> None:
    user = {**plugin(tmp_path, "exit 3"), "token": "own"}
    with recording() as server:
        read_node(kubeconfig(tmp_path, {"server": server.url}, user))
    assert server.values("Authorization") == ["Bearer own"]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo no cloud here >&2; exit 3", "credentials ended with 3: no cloud here"),
        ("echo nonsense", "must print an ExecCredential: JSON is malformed"),
        ("echo '{}'", "must print an ExecCredential: .*missing required field"),
        ("echo '[]'", "must print an ExecCredential: Expected `object`"),
        (issuing(V1BETA1), f"must print an ExecCredential of {V1}, got 'ExecCredential' of '{V1BETA1}'"),
        (issuing(token=""), "must print a token, or a client certificate and its key"),
        (issuing(expirationTimestamp="soon"), "must print an ExecCredential: Invalid RFC3339"),
        ("head -c 2000000 /dev/zero", "must print at most 1048576 bytes, got 1[0-9]{6} or more"),
        ("kill -9 $$", "ended with -9"),
    ],
)
def test_a_plugin_that_fails_is_named(tmp_path: Path, script: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_node(kubeconfig(tmp_path, {"server": "http://127.0.0.1:1"}, plugin(tmp_path, script)))


def test_a_plugin_that_is_not_there_is_named_with_its_install_hint(tmp_path: Path) -> None:
    user = plugin(tmp_path, "", installHint="\n  get it from example.com\n")
    (tmp_path / "credentials").unlink()
    with pytest.raises(ConfigError, match=r"cannot get credentials by .*/credentials: .*; get it from example.com$"):
        read_node(kubeconfig(tmp_path, {"server": "http://127.0.0.1:1"}, user))


def test_a_plugin_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    children = tmp_path / "children"
    hanging = made(tmp_path, f"sleep 1000 & echo $! > {children}; sleep 1000")
    hanging.limit = 0.5
    with pytest.raises(ConfigError, match=r"credentials did not end within 0\.5 s"):
        hanging.login()
    with suppress(ProcessLookupError):  # it has ended, or does so now
        child = os.pidfd_open(int(children.read_text()))
        assert select.select([child], [], [], 60)[0]
        os.close(child)


def test_a_mode_that_is_unknown_or_needs_a_terminal_is_refused(tmp_path: Path) -> None:
    for mode, text in (("Sometimes", "interactiveMode of exec must be"), ("Always", "needs a terminal")):
        entry = {**plugin(tmp_path, issuing())["exec"], "interactiveMode": mode}
        path = kubeconfig(tmp_path, {"server": "http://127.0.0.1:1"}, {"exec": entry})
        done = subprocess.run(
            [sys.executable, "-c", LOGIN, path], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert text in done.stderr


def test_a_plugin_on_a_terminal_may_ask(tmp_path: Path) -> None:
    """It reads the terminal, and is told that it may."""
    script = f'read answer; echo "$answer $KUBERNETES_EXEC_INFO" > {tmp_path}/asked\n{issuing()}'
    entry = {**plugin(tmp_path, script)["exec"], "interactiveMode": "IfAvailable"}
    path = kubeconfig(tmp_path, {"server": "http://127.0.0.1:1"}, {"exec": entry})
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", LOGIN, path], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        os.write(ours, b"yes\n")
        output, _ = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"Bearer secret" in output
    answer, info = (tmp_path / "asked").read_text().split(" ", 1)
    assert (answer, json.loads(info)["spec"]["interactive"]) == ("yes", True)
