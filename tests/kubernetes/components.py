"""The programs of a cluster: how each is called, and the files it is told by.

What had to be found out for a machine like ours is said where it is set. Starting them is `cluster`'s work.
"""

import json
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["API", "FIRST", "NODE", "SECOND", "Files", "Member", "commands"]

NODE = "node"
API = "198.18.1.1"  # the first service address: pods reach `kubernetes.default` without kube-proxy
_SERVICES = "198.18.1.0/24"
_ETCD = "http://127.0.0.1:2379"


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a cluster: its name, its address and the addresses of its pods."""

    name: str
    address: str
    pods: str


FIRST = Member(NODE, "198.18.0.1", "198.18.2.0/24")
SECOND = Member("second", "198.18.0.2", "198.18.3.0/24")


@dataclass(frozen=True, slots=True)
class Files:
    """Where the files of one node are; those of the whole cluster are with the first node."""

    state: Path
    member: Member = FIRST

    @property
    def admin(self) -> Path:
        return self.state / "admin.conf"

    @property
    def node(self) -> Path:
        return self.node_of(self.member)

    @property
    def keys(self) -> Path:
        return self.state / "keys"

    @property
    def tokens(self) -> Path:
        return self.state / "tokens.csv"

    @property
    def kubelet(self) -> Path:
        return self.state / "kubelet.json"

    @property
    def containerd(self) -> Path:
        return self.state / "containerd.toml"

    @property
    def runtime_socket(self) -> Path:
        return self.state / "containerd.sock"

    def write(self, cgroup: str, cni: Path) -> None:
        """The files of the whole cluster, and those of the first node."""
        self.keys.mkdir(mode=0o700)
        _write_service_account_keys(self.keys)
        admin = secrets.token_hex(16)
        lines = [f'{admin},admin,1,"system:masters"']
        self._write_secret(self.admin, self.kubeconfig(admin))
        for member in (FIRST, SECOND):  # the API server reads tokens only when it starts
            token = secrets.token_hex(16)
            lines.append(f'{token},system:node:{member.name},{member.name},"system:nodes"')
            self._write_secret(self.node_of(member), self.kubeconfig(token))
        self._write_secret(self.tokens, "".join(f"{line}\n" for line in lines))
        self.write_node(cgroup, cni)

    def node_of(self, member: Member) -> Path:
        """The kubeconfig of a node's kubelet, in the directory of the whole cluster."""
        return self.state / f"{member.name}.conf"

    def write_node(self, cgroup: str, cni: Path) -> None:
        """The files of this node's containerd and kubelet."""
        self.write_kubelet(cgroup, {})
        self.containerd.write_text(self._containerd(cni))
        (self.state / "cni").mkdir()
        (self.state / "cni" / "10-pods.conflist").write_text(self._network())

    def write_kubelet(self, cgroup: str, changes: Mapping[str, object]) -> None:
        """The kubelet's own settings; `changes` win."""
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self.runtime_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "readOnlyPort": 0,
            "resolvConf": "",  # no names are resolved in here
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "1s",
            "nodeStatusReportFrequency": "1s",
            # A full disk of the machine is no reason to throw out pods or images, which nobody could fetch again.
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            **changes,
        }
        self.kubelet.write_text(json.dumps(settings, indent=2))

    def kubeconfig(self, token: str) -> str:
        """For whoever has the token."""
        certificate = str(self.keys / "apiserver.crt")
        server = {"server": f"https://{API}", "certificate-authority": certificate}
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        return json.dumps(config, indent=2)

    def _containerd(self, cni: Path) -> str:
        """Some machines forbid a lower oom_score_adj; an AppArmor profile would be loaded for the whole machine."""
        return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{self.runtime_socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "plugwright.test/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_cdi = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{cni}"]
  conf_dir = "{self.state}/cni"
"""

    def _network(self) -> str:
        routes = [{"dst": "0.0.0.0/0"}]  # to the API server, whose address is the node's
        pods = {"type": "ptp", "ipam": {"type": "host-local", "subnet": self.member.pods, "routes": routes}}
        return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [pods]})

    @staticmethod
    def _write_secret(path: Path, text: str) -> None:
        path.touch(mode=0o600)
        path.write_text(text)


def commands(programs: Mapping[str, Path], files: Files) -> dict[str, list[str | Path]]:
    """How each component is called, in the order in which they are started."""
    keys, kubeconfig = files.keys, f"--kubeconfig={files.admin}"
    delegated = [f"--authentication-kubeconfig={files.admin}", f"--authorization-kubeconfig={files.admin}"]
    alone = [kubeconfig, *delegated, "--leader-elect=false", "--bind-address=127.0.0.1"]
    return {
        "etcd": [
            programs["etcd"], "--data-dir", files.state / "etcd", "--unsafe-no-fsync",
            "--listen-client-urls", _ETCD, "--advertise-client-urls", _ETCD,
        ],
        "containerd": [programs["containerd"], "--config", files.containerd],
        "kube-apiserver": [
            programs["kube-apiserver"], f"--etcd-servers={_ETCD}", f"--cert-dir={keys}",
            f"--bind-address={API}", f"--advertise-address={API}", "--secure-port=443",
            "--endpoint-reconciler-type=none", f"--service-cluster-ip-range={_SERVICES}",
            "--service-account-issuer=https://kubernetes.default", f"--service-account-key-file={keys / 'sa.pub'}",
            f"--service-account-signing-key-file={keys / 'sa.key'}", f"--token-auth-file={files.tokens}",
            "--authorization-mode=Node,RBAC", "--kubelet-preferred-address-types=InternalIP", "--allow-privileged=true",
        ],
        "kube-controller-manager": [
            programs["kube-controller-manager"], *alone, f"--service-account-private-key-file={keys / 'sa.key'}",
            f"--root-ca-file={keys / 'apiserver.crt'}", "--use-service-account-credentials",
        ],
        "kube-scheduler": [programs["kube-scheduler"], *alone],
        "kubelet": [
            programs["kubelet"], f"--config={files.kubelet}", f"--kubeconfig={files.node}",
            f"--hostname-override={files.member.name}", f"--node-ip={files.member.address}", "-v=2",
        ],
    }  # fmt: skip


def _write_service_account_keys(keys: Path) -> None:
    private, public = keys / "sa.key", keys / "sa.pub"
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
