"""Access to a cluster by the entries of a kubeconfig, over real sockets."""

import base64
from pathlib import Path

import pytest
from tests.kube.recording import NODE, kubeconfig, read_node, recording, write_authority

from plugwright.errors import ConfigError, PeerGone
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient
from plugwright.kube.credentials import Credentials


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def test_a_token_and_an_authority_may_be_files_or_data(tmp_path: Path) -> None:
    _, context = write_authority(tmp_path)
    (tmp_path / "token").write_text("secret\n")
    with recording(context) as server:
        for cluster, user in (
            ({"certificate-authority": "ca.crt"}, {"tokenFile": "token"}),
            ({"certificate-authority-data": data(tmp_path / "ca.crt")}, {"token": "secret"}),
            ({"certificate-authority": "none", "certificate-authority-data": data(tmp_path / "ca.crt")}, {}),
        ):
            read_node(kubeconfig(tmp_path, {"server": server.url, **cluster}, user))
            assert server.values("Authorization") == (["Bearer secret"] if user else [])


def test_a_token_file_is_read_again_for_each_request(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one")
    with recording() as server:
        path = kubeconfig(tmp_path, {"server": server.url}, {"tokenFile": "token", "token": "other"})
        with BlockingClient(ClusterAccess.choose(path, environment={})) as client:
            for token in ("one", "two"):
                (tmp_path / "token").write_text(f"{token}\n")
                client.get(NODE)
                assert server.values("Authorization") == [f"Bearer {token}"]


def test_user_and_password_are_sent(tmp_path: Path) -> None:
    with recording() as server:
        read_node(kubeconfig(tmp_path, {"server": server.url}, {"username": "me", "password": "ü:1"}))
    assert server.values("Authorization") == [f"Basic {base64.b64encode('me:ü:1'.encode()).decode()}"]


@pytest.mark.parametrize("how", ["files", "data"])
def test_a_client_certificate_may_be_files_or_data(tmp_path: Path, how: str) -> None:
    authority, context = write_authority(tmp_path, ask=True)
    mine = authority.issue_cert("me@example.com")
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "me.crt"))
    mine.private_key_pem.write_to_path(str(tmp_path / "me.key"))
    user = {"client-certificate": "me.crt", "client-key": "me.key"}
    if how == "data":
        user = {f"{name}-data": data(tmp_path / file) for name, file in user.items()}
    with recording(context) as server:
        read_node(kubeconfig(tmp_path, {"server": server.url, "certificate-authority": "ca.crt"}, user))
    assert "me@example.com" in server.clients[-1]


def test_an_encrypted_key_is_refused_without_a_prompt(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    authority, _ = write_authority(tmp_path)
    mine = authority.issue_cert("me@example.com")
    key = serialization.load_pem_private_key(mine.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "me.key").write_bytes(encrypted)
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "me.crt"))
    user = {"client-certificate": "me.crt", "client-key": "me.key"}
    path = kubeconfig(tmp_path, {"server": "https://127.0.0.1:1", "certificate-authority": "ca.crt"}, user)
    with pytest.raises(ConfigError, match="its certificates or keys"):
        ClusterAccess.of_kubeconfig(path, environment={})


def test_a_certificate_for_another_name_needs_the_tls_server_name(tmp_path: Path) -> None:
    _, context = write_authority(tmp_path, "kubernetes.example.com")
    cluster: dict[str, object] = {"certificate-authority": "ca.crt"}
    with recording(context) as server:
        with pytest.raises(PeerGone, match="certificate verify failed"):
            read_node(kubeconfig(tmp_path, {"server": server.url, **cluster}, {}))
        cluster["tls-server-name"] = "kubernetes.example.com"
        read_node(kubeconfig(tmp_path, {"server": server.url, **cluster}, {}))


def test_an_unknown_authority_is_accepted_only_with_insecure_skip_tls_verify(tmp_path: Path) -> None:
    _, context = write_authority(tmp_path, "elsewhere")
    with recording(context) as server:
        with pytest.raises(PeerGone, match="certificate verify failed"):
            read_node(kubeconfig(tmp_path, {"server": server.url}, {}))
        read_node(kubeconfig(tmp_path, {"server": server.url, "insecure-skip-tls-verify": True}, {}))


def test_another_identity_is_asked_for_by_headers(tmp_path: Path) -> None:
    user = {
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"example.com/scopes": ["view", "edit"]},
    }
    with recording() as server:
        read_node(kubeconfig(tmp_path, {"server": server.url}, user))
    assert server.values("Impersonate-User") == ["jane"]
    assert server.values("Impersonate-Uid") == ["7"]
    assert server.values("Impersonate-Group") == ["a", "b"]
    assert server.values("Impersonate-Extra-example.com%2Fscopes") == ["view", "edit"]


def test_answers_are_asked_for_without_compression_under_the_prefix(tmp_path: Path) -> None:
    with recording() as server:
        path = kubeconfig(tmp_path, {"server": f"{server.url}/k8s/clusters/c-1/"}, {})
        read_node(path, times=2)
    assert server.values("Accept-Encoding") == ["identity"]
    assert server.paths == ["/k8s/clusters/c-1/api/v1/nodes/node"] * 2


def test_several_files_in_kubeconfig_are_one(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    with recording() as server:
        path = kubeconfig(tmp_path, {"server": server.url}, {"token": "second"})
        first = kubeconfig(tmp_path / "user", {"server": server.url}, {"tokenFile": "token"})
        (tmp_path / "user" / "token").write_text("first")
        access = ClusterAccess.of_kubeconfig(None, environment={"KUBECONFIG": f"{first}:{path}"})
        assert access is not None
        assert access.credentials.headers() == [("Authorization", "Bearer first")]


@pytest.mark.parametrize(
    ("cluster", "user", "text"),
    [
        ({"server": "https://a"}, {"auth-provider": {"name": "gcp"}}, "the credential plugin gke-gcloud-auth-plugin"),
        (
            {"server": "https://a"},
            {"auth-provider": {"name": "own"}},
            "auth-provider 'own' .*use the credential plugin",
        ),
        ({"server": "https://a"}, {"username": "x", "token": "y"}, "a token or a username, got both"),
        ({"server": "https://a"}, {"as-groups": ["x"]}, "need as: the user to act as"),
        ({"server": "https://a"}, {"token": 3}, "user 'me': Expected `str`, got `int`"),
        ({"server": "https://a"}, {"exec": {"command": "x"}}, r"apiVersion of exec .* must be .*/v1 or .*/v1beta1"),
        ({"server": "https://a", "proxy-url": "ftp://user:secret@b"}, {}, "a proxy must look like http.*got 'b'"),
        ({"server": "ftp://a"}, {}, "must look like https://HOST:PORT"),
        ({"server": "https://a:b"}, {}, "must look like https://HOST:PORT"),
        ({"server": "https://a", "certificate-authority-data": "?"}, {}, "must be base64"),
        ({"server": "https://a", "certificate-authority": "none"}, {}, "its certificates or keys.*No such file"),
        ({"server": "https://a"}, {"client-certificate": "n", "client-key": "n"}, "its certificates or keys"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_the_operators_fault(
    tmp_path: Path, cluster: dict[str, object], user: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        ClusterAccess.of_kubeconfig(kubeconfig(tmp_path, cluster, user), environment={})


def test_without_a_pod_and_a_kubeconfig_there_is_no_api_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no service account of a pod, no KUBECONFIG"):
        ClusterAccess.find({"HOME": str(tmp_path)}, tmp_path / "none")
    with pytest.raises(ConfigError, match="no --kubeconfig, no KUBECONFIG"):
        ClusterAccess.choose(None, environment={"HOME": str(tmp_path)})


def test_in_a_pod_a_daemon_takes_the_service_account_and_a_command_the_kubeconfig(tmp_path: Path) -> None:
    account = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    path = kubeconfig(tmp_path, {"server": "http://other:80"}, {})
    environment = {**account, "KUBECONFIG": str(path)}
    assert ClusterAccess.find(environment, tmp_path).url == "https://[fd00::1]:6443"
    assert ClusterAccess.choose(None, environment=environment).url == "http://other:80"


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(Credentials("secret", basic="me:secret", key=b"secret"))
