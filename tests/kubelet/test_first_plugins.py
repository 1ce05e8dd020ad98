"""Plugins as they were in Kubernetes 1.8, with ListAndWatch and Allocate and nothing else (1.33)."""

from pathlib import Path

import pytest
from tests.kubelet.rogue import TAPE, Rogue, registered

from plugwright.errors import PeerRefused
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.testing import pod_requesting


def first_plugin() -> Rogue:
    rogue = Rogue()
    rogue.answers = {"Allocate": rogue.answers["Allocate"]}
    return rogue


@pytest.mark.parametrize("version", ["1.26", "1.36", "1.37"])
async def test_first_plugin_is_refused_by_current_kubelets(root: Path, version: str) -> None:
    async with Kubelet(root, KubeletSettings(version=version)) as kubelet:
        with pytest.raises(PeerRefused, match="failed to get device plugin options: rpc error: code = Unimplemented"):
            async with registered(kubelet, first_plugin()):
                pass
        assert TAPE not in kubelet.node()
        assert "ListAndWatch" not in [call.method for call in kubelet.calls]


async def test_first_plugin_is_served_by_the_legacy_profile_with_a_finding(root: Path) -> None:
    async with Kubelet(root, KubeletSettings(version="legacy")) as kubelet, registered(kubelet, first_plugin()):
        assert await kubelet.allocatable(TAPE, 2) == 2
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        assert pod.container("main").env == {"TAPES": "st0"}
        assert [call.method for call in kubelet.calls] == [
            "Register",
            "GetDevicePluginOptions",
            "ListAndWatch",
            "Allocate",
        ]
        assert [finding.fact for finding in kubelet.findings] == ["1.33"]
        assert "a real kubelet of today refuses it" in str(kubelet.findings[0])
