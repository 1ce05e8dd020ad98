"""A vgpu share's size is in its id, and a container has the sum of its shares."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.plugins.nvidia.mps.node import gpu

from plugwright.model import Device
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.vgpu_sizes import DeviceShare, device_shares, sized_id

MIB = 2**20
FIRST = sharing.whole_device(gpu(0))


@given(st.integers(0, 9_999_999), st.integers(0, 100), st.integers(0, 9999))
def test_an_id_has_the_size(mebibytes: int, percent: int, number: int) -> None:
    share = replace(FIRST, memory=mebibytes * MIB, percent=percent, replica=number)
    assert Device(sized_id(share)).id == f"{FIRST.uuid}::{mebibytes}m-{percent}c-{number}"


def test_a_container_has_the_sum_of_its_shares_and_no_more_than_all_processors() -> None:
    share = replace(FIRST, memory=10 * 2**30, percent=60, replica=0)
    assert device_shares([share, replace(share, replica=1)]) == [DeviceShare(FIRST.uuid, 20480, 100)]
