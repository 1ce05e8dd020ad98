"""Opaque parameters of claims that were written for NVIDIA's DRA driver."""

from collections.abc import Mapping

import pytest
from tests.plugins.nvidia.harness import machine

from plugwright.errors import PluginError
from plugwright.plugins.nvidia.config import NvidiaConfig, NvidiaShare, SharingStrategy
from plugwright.plugins.nvidia.plugin import Nvidia

TURNS = NvidiaShare(by=SharingStrategy.TIME_SLICING, replicas=4)
MPS = NvidiaShare(by=SharingStrategy.MPS, replicas=4)
VGPU = NvidiaShare(by=SharingStrategy.VGPU, replicas=4)


def parameters(sharing: object = None, kind: str = "GpuConfig", **more: object) -> Mapping[str, object]:
    shared = {} if sharing is None else {"sharing": sharing}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **shared, **more}


async def check(share: NvidiaShare | None, given: Mapping[str, object]) -> None:
    await Nvidia("nvidia.com/gpu", NvidiaConfig(share=share), machine("t4")).check_parameters(given)


@pytest.mark.parametrize(
    ("share", "sharing", "kind"),
    [
        (None, None, "GpuConfig"),
        (VGPU, None, "MigDeviceConfig"),
        (None, {"strategy": "TimeSlicing"}, "GpuConfig"),
        (TURNS, {"strategy": "TimeSlicing"}, "MigDeviceConfig"),
        (TURNS, {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}, "GpuConfig"),
        (TURNS, {"strategy": "TimeSlicing", "timeSlicingConfig": {}}, "GpuConfig"),
        (MPS, {"strategy": "MPS"}, "GpuConfig"),
        (MPS, {"strategy": "MPS", "mpsConfig": {}}, "GpuConfig"),
    ],
)
async def test_a_choice_that_the_operator_has_made_too_is_accepted(
    share: NvidiaShare | None, sharing: object, kind: str
) -> None:
    await check(share, parameters(sharing, kind))


@pytest.mark.parametrize(
    ("share", "given", "problem"),
    [
        (None, {"strategy": "MPS"}, "sharing.strategy must be TimeSlicing, got 'MPS'"),
        (MPS, {"strategy": "TimeSlicing"}, "sharing.strategy must be MPS, got 'TimeSlicing'"),
        (MPS, {}, "sharing.strategy must be MPS, got None"),
        (VGPU, {"strategy": "MPS"}, "sharing.strategy must be left out, got 'MPS': the resource is shared by vgpu"),
        (
            None,
            {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
            "sharing.timeSlicingConfig.interval is the GPU's, and plugwright does not change it",
        ),
        (
            MPS,
            {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}},
            "sharing.mpsConfig.defaultActiveThreadPercentage is set by the resource",
        ),
        (None, {"strategy": "TimeSlicing", "mpsConfig": []}, "sharing.mpsConfig is not supported"),
        (None, {"strategy": "TimeSlicing", "new": {}}, "sharing.new is not supported"),
        (None, "TimeSlicing", "sharing must be an object"),
    ],
)
async def test_every_other_field_is_refused_by_its_path(share: NvidiaShare | None, given: object, problem: str) -> None:
    with pytest.raises(PluginError, match=problem):
        await check(share, parameters(given))


async def test_all_problems_are_named_at_once() -> None:
    given = {"strategy": "MPS", "timeSlicingConfig": {"interval": "Short", "other": 1}}
    with pytest.raises(PluginError) as refused:
        await check(None, parameters(given, profile="x"))
    text = str(refused.value)
    for field in ("'profile'", "sharing.strategy", "timeSlicingConfig.other", "timeSlicingConfig.interval"):
        assert field in text


async def test_a_mig_device_has_no_interval() -> None:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}
    with pytest.raises(PluginError, match=r"sharing\.timeSlicingConfig is not supported for MigDeviceConfig"):
        await check(None, parameters(sharing, "MigDeviceConfig"))


@pytest.mark.parametrize(
    "given",
    [{}, {"kind": "GpuConfig"}, {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig"}],
)
async def test_parameters_of_another_kind_are_refused(given: Mapping[str, object]) -> None:
    with pytest.raises(PluginError, match=r"must be of apiVersion resource.nvidia.com/v1beta1, kind GpuConfig or Mig"):
        await check(None, given)
