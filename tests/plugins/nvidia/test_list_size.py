"""More units than the kubelet takes are refused before they are made, with what would fit instead."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.nvidia.mps.node import gpu

from plugwright.errors import ListTooLarge, PluginError
from plugwright.model import Device
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.sharing import By, Share, TimeSlicing
from plugwright.protocol import messages

MIB = 2**20
WHOLE = [sharing.whole(replace(gpu(index), numa=index % 2)) for index in range(8)]


def listed(share: Share) -> None:
    """As the kubelet is told of them, all out of order: the longer word."""
    units = sharing.shared(WHOLE, share)
    devices = [Device(unit.id, "Unhealthy", "x", [unit.gpu.numa or 0]) for unit in units]
    messages.encode_devices("nvidia.com/gpu", devices)


def test_a_mebibyte_each_is_refused_with_a_proposal() -> None:
    with pytest.raises(PluginError, match=r"655,360 units .* the kubelet takes 4,194,304") as refused:
        sharing.check("nvidia.com/gpu", WHOLE, Share(memory=MIB))
    proposed = re.search(r"try memory: (\d+)Mi$", str(refused.value))
    assert proposed
    fitting = Share(memory=int(proposed[1]) * MIB)
    sharing.check("nvidia.com/gpu", WHOLE, fitting)
    listed(fitting)


def test_too_many_replicas_are_refused_with_a_proposal() -> None:
    with pytest.raises(PluginError, match=r"try replicas: \d+$") as refused:
        sharing.check("nvidia.com/gpu", WHOLE, Share(replicas=16384))
    listed(Share(replicas=int(str(refused.value).rpartition(" ")[2])))


def test_nothing_is_made_of_units_that_cannot_be() -> None:
    with pytest.raises(PluginError, match="the kubelet takes"):
        TimeSlicing("nvidia.com/gpu", Share(by=By.TIME_SLICING, memory=1)).units(WHOLE)


@given(replicas=st.integers(1, 20_000))
def test_what_is_accepted_can_be_sent(replicas: int) -> None:
    share = Share(replicas=replicas)
    try:
        sharing.check("nvidia.com/gpu", WHOLE, share)
    except PluginError:
        assert replicas > 6000  # 8 GPUs of about 68 bytes each
        return
    if replicas > 6000:
        listed(share)


def test_the_wire_has_the_same_limit() -> None:
    with pytest.raises(ListTooLarge):
        listed(Share(replicas=9000))
