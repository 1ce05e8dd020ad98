"""The namespace controller: a deleted namespace stays Terminating until all its objects are gone."""

from collections import Counter
from datetime import datetime

from plugwright.apiserver.kinds import KINDS, NAMESPACES
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Change, Object
from plugwright.cluster.events import ClusterClient

__all__ = ["NamespaceController"]

_MANAGER = "kube-controller-manager"
# Reason and message without problems, by type, in the order of the list.
_DONE = {
    "NamespaceDeletionDiscoveryFailure": ("ResourcesDiscovered", "All resources successfully discovered"),
    "NamespaceDeletionGroupVersionParsingFailure": (
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    "NamespaceDeletionContentFailure": (
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    "NamespaceContentRemaining": ("ContentRemoved", "All content successfully removed"),
    "NamespaceFinalizersRemaining": ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
}


class NamespaceController:
    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._terminating: set[str] = set()

    def resync(self) -> None:
        self._terminating.clear()
        for namespace in self._client.store.objects(NAMESPACES.qualified):
            self._namespace_changed(namespace)

    def handle(self, change: Change) -> None:
        if change.key.kind == NAMESPACES.qualified:
            if change.type == "DELETED":
                self._terminating.discard(change.key.name)
            else:
                self._namespace_changed(change.object)
        elif change.type == "DELETED" and change.key.namespace in self._terminating:
            self._delete_contents(change.key.namespace)

    def next_due(self) -> datetime | None:
        return None

    def run_due(self) -> None:
        """Does nothing: nothing here waits for a time."""

    def _namespace_changed(self, namespace: Object) -> None:
        name = namespace["metadata"]["name"]
        if namespace["metadata"].get("deletionTimestamp") and name not in self._terminating:
            self._terminating.add(name)
            self._delete_contents(name)

    def _delete_contents(self, name: str) -> None:
        path = ResourcePath(NAMESPACES, "", name)
        namespace = self._client.store.get(path.key)
        if namespace is None or not (namespace.get("spec") or {}).get("finalizers"):
            return
        for content, content_path in self._contents(name):
            if not content["metadata"].get("deletionTimestamp"):
                self._client.writer.delete(content_path, DeleteOptions(propagation="Background"))
        remaining = self._contents(name)
        self._write_conditions(path, remaining)
        if not remaining:
            self._client.writer.finalize(path)

    def _contents(self, name: str) -> list[tuple[Object, ResourcePath]]:
        return [
            (content, ResourcePath(kind, name, content["metadata"]["name"]))
            for kind in KINDS
            if kind.namespaced
            for content in self._client.store.objects(kind.qualified, name)
        ]

    def _write_conditions(self, path: ResourcePath, remaining: list[tuple[Object, ResourcePath]]) -> None:
        found = _remaining_conditions(remaining)
        now = self._client.stamp()

        def with_conditions(namespace: Object) -> Object:
            status = namespace.get("status") or {}
            known = {condition["type"]: condition for condition in status.get("conditions") or ()}
            conditions = []
            for kind, done in _DONE.items():
                value = ("True", *found[kind]) if kind in found else ("False", *done)
                condition = dict(zip(("status", "reason", "message"), value, strict=True))
                before = known.get(kind) or {}
                since = before["lastTransitionTime"] if before.get("status") == value[0] else now
                conditions.append({"type": kind, **condition, "lastTransitionTime": since})
            return {**namespace, "status": {**status, "conditions": conditions}}

        self._client.writer.change(ResourcePath(NAMESPACES, "", path.name, "status"), with_conditions, _MANAGER)


def _remaining_conditions(remaining: list[tuple[Object, ResourcePath]]) -> dict[str, tuple[str, str]]:
    """Reason and message by condition type."""
    if not remaining:
        return {}
    kinds = Counter(f"{path.kind.plural}.{path.kind.group}" for _, path in remaining)
    texts = ", ".join(f"{kind} has {count} resource instances" for kind, count in sorted(kinds.items()))
    found = {"NamespaceContentRemaining": ("SomeResourcesRemain", f"Some resources are remaining: {texts}")}
    finalizers = Counter(name for content, _ in remaining for name in content["metadata"].get("finalizers") or ())
    if finalizers:
        texts = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
        text = f"Some content in the namespace has finalizers remaining: {texts}"
        found["NamespaceFinalizersRemaining"] = ("SomeFinalizersRemain", text)
    return found
