"""One scenario, played to the emulated kubelet and to the real one, which must tell the same."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.stages import EmulatedStage, RealStage, Stage

from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.model import Device

__all__ = ["Both", "devices"]

Scenario = Callable[[Stage], Awaitable[list[object]]]


class Both:
    """Plays a scenario to the emulated kubelet, then to the real one."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        self._cluster, self._root = cluster, root

    async def agree_on(self, scenario: Scenario, **topology: str) -> list[object]:
        settings = KubeletSettings(version=self._cluster.version, **topology)  # type: ignore[arg-type]
        async with Kubelet(self._root / "emulated", settings) as kubelet:
            ours = await scenario(EmulatedStage(kubelet))
        real = RealStage(self._cluster)
        await real.listens()
        theirs = await scenario(real)
        for mine, real_one in zip(ours, theirs, strict=True):
            assert mine == real_one, f"emulated: {mine}\nreal: {real_one}"
        return ours


def devices(count: int, **facts: object) -> list[Device]:
    return [Device(f"d{number}", **facts) for number in range(count)]  # type: ignore[arg-type]
