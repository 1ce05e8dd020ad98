"""The kinds of object that are served: their names, and which of them have a status of their own. Pure data."""

from dataclasses import dataclass

__all__ = [
    "CONFIG_MAPS",
    "EVENTS",
    "KINDS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "SERVICE_ACCOUNTS",
    "Kind",
    "find",
]


@dataclass(frozen=True, slots=True)
class Kind:
    plural: str
    name: str
    group: str = ""
    version: str = "v1"
    short: tuple[str, ...] = ()
    namespaced: bool = True
    status: bool = False
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()  # beside status

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As messages name it: `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def root(self) -> str:
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"


PODS = Kind("pods", "Pod", short=("po",), status=True, categories=("all",), subresources=("binding", "eviction", "log"))
NODES = Kind("nodes", "Node", short=("no",), namespaced=False, status=True)
NAMESPACES = Kind("namespaces", "Namespace", short=("ns",), namespaced=False, status=True)
EVENTS = Kind("events", "Event", short=("ev",))
CONFIG_MAPS = Kind("configmaps", "ConfigMap", short=("cm",))
SERVICE_ACCOUNTS = Kind("serviceaccounts", "ServiceAccount", short=("sa",))
LEASES = Kind("leases", "Lease", group="coordination.k8s.io")
KINDS = (CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS)


def find(group: str, version: str, plural: str) -> Kind | None:
    return next((kind for kind in KINDS if (kind.group, kind.version, kind.plural) == (group, version, plural)), None)
