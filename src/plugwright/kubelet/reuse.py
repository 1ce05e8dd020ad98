"""Devices that a pod's later containers may take over from its init containers (3.32 to 3.34).

Kept for the pod that is being admitted and no other. Pure.
"""

from collections.abc import Collection

from plugwright.kubelet.pods import ContainerKind

__all__ = ["Reusable"]


class Reusable:
    def __init__(self, *, keeps_sidecars: bool) -> None:
        self._keeps_sidecars = keeps_sidecars  # before 1.29 a sidecar's devices were handed on like an init container's
        self._pod_uid = ""
        self._devices: dict[str, set[str]] = {}

    def of(self, pod_uid: str, resource: str) -> frozenset[str]:
        self._turn_to(pod_uid)
        return frozenset(self._devices.get(resource, ()))

    def pass_on(self, pod_uid: str, kind: ContainerKind, held: dict[str, Collection[str]]) -> None:
        """After a container got its devices: an init container's go on, those of one that stays do not."""
        self._turn_to(pod_uid)
        stays = kind is ContainerKind.MAIN or (kind is ContainerKind.SIDECAR and self._keeps_sidecars)
        for resource, device_ids in held.items():
            devices = self._devices.setdefault(resource, set())
            if stays:
                devices.difference_update(device_ids)
            else:
                devices.update(device_ids)

    def _turn_to(self, pod_uid: str) -> None:
        if self._pod_uid != pod_uid:
            self._pod_uid, self._devices = pod_uid, {}
