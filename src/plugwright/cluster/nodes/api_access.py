"""Access of container processes to the API server: as in a pod, and as with kubectl.

A pod gets the files of its service account and the variables of the `kubernetes` Service. `KUBECONFIG` is set too: a
process of this machine would otherwise find the kubeconfig of its user, and with it another cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.apiserver.kinds import SERVICE_ACCOUNTS
from plugwright.apiserver.store import Object, ObjectKey, ObjectReader
from plugwright.kubelet import sandbox

__all__ = ["ServiceAccountFiles"]

_MOUNTED_AT = "/var/run/secrets/kubernetes.io/serviceaccount"
_DIRECTORY_MODE, _FILE_MODE = 0o755, 0o600


@dataclass(frozen=True, slots=True)
class ServiceAccountFiles:
    """The files for the API server on this machine; every service account has the token of the single user."""

    port: int
    token: str = field(repr=False)
    authority: Path
    kubeconfig: Path

    def environment(self) -> Mapping[str, str]:
        address = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}
        return {**address, "KUBERNETES_SERVICE_PORT_HTTPS": str(self.port), "KUBECONFIG": str(self.kubeconfig)}

    def mount(self, pod: Object, store: ObjectReader, directory: Path) -> list[sandbox.PathSpec]:
        """Writes the files into the directory; nothing for a pod or a service account without a token."""
        if not _wants_token(pod, store):
            return []
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        namespace = str(pod["metadata"]["namespace"])
        for name, content in (("token", self.token), ("namespace", namespace), ("ca.crt", self.authority.read_text())):
            file = directory / name
            file.touch(_FILE_MODE)
            file.write_text(content)
        return [(str(directory), _MOUNTED_AT, True, sandbox.QUIET)]


def _wants_token(pod: Object, store: ObjectReader) -> bool:
    wanted = pod["spec"].get("automountServiceAccountToken")
    if wanted is None:
        name = str(pod["spec"].get("serviceAccountName") or "default")
        account = store.get(ObjectKey(SERVICE_ACCOUNTS.qualified, pod["metadata"]["namespace"], name))
        wanted = (account or {}).get("automountServiceAccountToken")
    return wanted is not False
