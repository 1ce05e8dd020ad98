"""More units than the kubelet accepts are refused before they are made, with a proposal that fits."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.plugins.nvidia.mps.node import gpu

from plugwright.errors import ListTooLarge, PluginError
from plugwright.model import Device
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.config import NvidiaShare
from plugwright.plugins.nvidia.time_slicing import TimeSlicing
from plugwright.protocol import messages

MIB = 2**20
WHOLE = [sharing.whole_device(replace(gpu(index), numa=index % 2)) for index in range(8)]


def encode(share: NvidiaShare) -> None:
    """As on the wire, all Unhealthy, which is the longer word."""
    units = sharing.split_all(WHOLE, share)
    devices = [Device(unit.id, "Unhealthy", "x", [unit.gpu.numa or 0]) for unit in units]
    messages.encode_devices("nvidia.com/gpu", devices)


def test_units_of_one_mebibyte_are_refused_with_a_proposal() -> None:
    with pytest.raises(PluginError, match=r"655,360 units .* the kubelet accepts 4,194,304") as refused:
        sharing.check_list_size("nvidia.com/gpu", WHOLE, NvidiaShare(memory=MIB))
    proposed = re.search(r"try memory: (\d+)Mi$", str(refused.value))
    assert proposed
    fitting = NvidiaShare(memory=int(proposed[1]) * MIB)
    sharing.check_list_size("nvidia.com/gpu", WHOLE, fitting)
    encode(fitting)


def test_too_many_replicas_are_refused_with_a_proposal() -> None:
    with pytest.raises(PluginError, match=r"try replicas: \d+$") as refused:
        sharing.check_list_size("nvidia.com/gpu", WHOLE, NvidiaShare(replicas=16384))
    encode(NvidiaShare(replicas=int(str(refused.value).rpartition(" ")[2])))


def test_too_many_units_are_refused_before_they_are_made() -> None:
    with pytest.raises(PluginError, match="the kubelet accepts"):
        TimeSlicing("nvidia.com/gpu", NvidiaShare(memory=1)).units(WHOLE)


@settings(max_examples=6)  # an encoded list takes a tenth of a second
@given(replicas=st.integers(6000, 9000))
@example(replicas=1)
@example(replicas=20_000)
def test_an_accepted_list_can_be_encoded(replicas: int) -> None:
    share = NvidiaShare(replicas=replicas)
    try:
        sharing.check_list_size("nvidia.com/gpu", WHOLE, share)
    except PluginError:
        assert replicas > 6000  # 8 GPUs of about 68 bytes each
        return
    encode(share)


def test_the_encoder_has_the_same_limit() -> None:
    with pytest.raises(ListTooLarge):
        encode(NvidiaShare(replicas=9000))
