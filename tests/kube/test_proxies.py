"""Proxies: each kind between a client and a server, and the variables that choose one."""

import ssl
from pathlib import Path

import pytest
from tests.kube.recording import kubeconfig, proxying, read_node, recording, write_authority

from plugwright.errors import PeerGone
from plugwright.kube.proxies import Proxy, from_environment


@pytest.fixture
def authority(tmp_path: Path) -> ssl.SSLContext:
    return write_authority(tmp_path)[1]


@pytest.mark.parametrize("scheme", ["http", "https", "socks5"])
def test_a_proxy_tunnels_tls(tmp_path: Path, authority: ssl.SSLContext, scheme: str) -> None:
    with recording(authority) as server, proxying(scheme, authority if scheme == "https" else None) as proxy:
        cluster = {"server": server.url, "certificate-authority": "ca.crt", "proxy-url": proxy.with_user("me:p%3As")}
        read_node(kubeconfig(tmp_path, cluster, {"token": "secret"}), times=3)
        address = server.url.removeprefix("https://")
        expected = address if scheme == "socks5" else f"CONNECT {address}"
        assert proxy.asked == [(expected, "me:p:s")]  # one connection for three requests
        assert server.values("Authorization") == ["Bearer secret"]
        assert server.values("Proxy-Authorization") == []


def test_a_server_without_tls_is_asked_through_the_proxy(tmp_path: Path) -> None:
    with recording() as proxy:  # an http proxy gets the request itself
        gate = proxy.url.replace("://", "://me:secret@")
        read_node(kubeconfig(tmp_path, {"server": "http://kube.example.com:8080", "proxy-url": gate}, {}))
    assert proxy.paths == ["http://kube.example.com:8080/api/v1/nodes/node"]
    assert proxy.values("Host") == ["kube.example.com:8080"]
    assert proxy.values("Proxy-Authorization") == ["Basic bWU6c2VjcmV0"]


def test_a_server_without_tls_is_asked_through_a_socks_proxy(tmp_path: Path) -> None:
    with recording() as server, proxying("socks5") as proxy:
        read_node(kubeconfig(tmp_path, {"server": server.url, "proxy-url": proxy.url}, {}))
        assert proxy.asked == [(server.url.removeprefix("http://"), "")]


@pytest.mark.parametrize("scheme", ["http", "https", "socks5"])
def test_a_proxy_that_refuses_is_named_without_its_password(
    tmp_path: Path, authority: ssl.SSLContext, scheme: str
) -> None:
    with proxying(scheme, authority if scheme == "https" else None) as proxy:
        proxy.refuses = True
        cluster = {"server": "https://kube", "certificate-authority": "ca.crt", "proxy-url": proxy.with_user("me:pw")}
        with pytest.raises(PeerGone, match=f"{proxy.url} refuses the connection: .*(Not here|not allowed)") as caught:
            read_node(kubeconfig(tmp_path, cluster, {}))
    assert "pw" not in str(caught.value)


def test_a_proxy_that_is_none_is_an_error_of_the_call(tmp_path: Path, authority: ssl.SSLContext) -> None:
    with recording(authority) as server:
        gate = server.url.replace("https", "http")
        path = kubeconfig(tmp_path, {"server": "https://kube", "proxy-url": gate}, {})
        with pytest.raises(PeerGone, match="cannot reach https://kube through http://127"):
            read_node(path)


def test_the_proxy_of_the_environment_is_used_unless_the_kubeconfig_has_one(
    tmp_path: Path, authority: ssl.SSLContext
) -> None:
    with proxying("http") as own, proxying("http") as other:
        own.refuses = other.refuses = True
        environment = {"HTTPS_PROXY": other.url.removeprefix("http://"), "NO_PROXY": "10.0.0.0/8"}
        cluster = {"server": "https://kube.example.com:6443", "certificate-authority": "ca.crt"}
        for content in (cluster, {**cluster, "proxy-url": own.url}):
            with pytest.raises(PeerGone, match="refuses the connection"):
                read_node(kubeconfig(tmp_path, content, {}), environment)
        assert own.asked == other.asked == [("CONNECT kube.example.com:6443", "")]


@pytest.mark.parametrize(
    ("url", "excluded", "is_used"),
    [
        ("https://kube.example.com", "", True),
        ("https://kube.example.com", "*", False),
        ("https://kube.example.com", "example.com", False),
        ("https://kube.example.com", ".example.com", False),
        ("https://kube.example.com", "*.example.com", False),
        ("https://example.com", ".example.com", True),
        ("https://example.com", "EXAMPLE.com", False),
        ("https://kube.example.com", "ample.com", True),
        ("https://kube.example.com:6443", "other, kube.example.com:6443", False),
        ("https://kube.example.com:6443", "kube.example.com:443", True),
        ("https://kube.example.com", "kube.example.com:443", False),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://10.1.2.3:6443", "10.1.2.3", False),
        ("https://10.1.2.3:6443", "10.1.2.3:443", True),
        ("https://10.1.2.3:6443", "10.1.2.0/x", True),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://[fd00::1]:6443", "fd00::1", False),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
        ("https://[fd00::1]:6443", "[fd00::1]:443", True),
        ("https://localhost:6443", "", False),
        ("https://127.0.0.2:6443", "", False),
        ("https://[::1]:6443", "", False),
    ],
)
def test_no_proxy_excludes_as_in_go(url: str, excluded: str, is_used: bool) -> None:
    environment = {"HTTPS_PROXY": "gate:3128", "NO_PROXY": excluded}
    assert from_environment(url, environment) == ("http://gate:3128" if is_used else "")


def test_each_scheme_has_its_variable() -> None:
    environment = {"HTTPS_PROXY": "", "https_proxy": "https://secure", "HTTP_PROXY": "plain:80"}
    assert from_environment("https://kube", environment) == "https://secure"
    assert from_environment("http://kube", environment) == "http://plain:80"
    assert from_environment("http://kube", {"HTTPS_PROXY": "https://secure"}) == ""


def test_a_proxy_has_a_default_port() -> None:
    assert [str(Proxy.parse(f"{scheme}://gate")) for scheme in ("http", "https", "socks5")] == [
        "http://gate:80",
        "https://gate:443",
        "socks5://gate:1080",
    ]
