"""A vgpu share's size is in its id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.nvidia.mps.node import gpu

from plugwright.errors import PluginError
from plugwright.model import Device
from plugwright.plugins.nvidia.vgpu_sizes import VgpuSize, decode, encode

FIRST = gpu(0).uuid


@given(
    size=st.builds(
        VgpuSize,
        device=st.sampled_from([FIRST, "MIG-00000000-0000-0000-0000-000000000000"]),
        mebibytes=st.integers(0, 9_999_999),
        percent=st.integers(0, 100),
        number=st.integers(0, 9999),
    )
)
def test_a_size_is_decoded_from_its_id(size: VgpuSize) -> None:
    assert decode(encode(size)) == size
    assert Device(encode(size)).id == encode(size)


@pytest.mark.parametrize("other", ["GPU-1", "GPU-1::3", "GPU-1::m-c-", "GPU-1::1m-2c-x"])
def test_an_id_without_a_size_is_refused(other: str) -> None:
    with pytest.raises(PluginError, match="must end in its size"):
        decode(other)
