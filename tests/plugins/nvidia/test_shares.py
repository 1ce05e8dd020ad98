"""Shares of a device have distinct ids, and the memory and percent of their part."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright import ConfigError, Device
from plugwright.plugins.nvidia import config, sharing, simulated_machines
from plugwright.plugins.nvidia.config import NvidiaConfig, NvidiaShare

H100 = simulated_machines.load("hgx-h100").gpus
MIG = simulated_machines.load("hgx-h100-mig").gpus
GIB = 2**30


@given(replicas=st.integers(1, 500))
def test_replicas_divide_the_device(replicas: int) -> None:
    whole = sharing.whole_device(H100[0])
    shares = sharing.split(whole, NvidiaShare(replicas=replicas))
    assert len({Device(share.id).id for share in shares}) == replicas
    assert [share.replica for share in shares] == list(range(replicas))
    assert whole.memory - replicas < sum(share.memory for share in shares) <= whole.memory
    assert sum(share.percent for share in shares) <= 100
    assert {share.uuid for share in shares} == {whole.uuid}


@given(memory=st.integers(1, 80), percent=st.integers(0, 100))
def test_sizes_decide_the_number_of_shares(memory: int, percent: int) -> None:
    whole = sharing.whole_device(H100[0])
    shares = sharing.split(whole, NvidiaShare(memory=memory * GIB, percent=percent))
    assert len(shares) == min(whole.memory // (memory * GIB), 100 // percent if percent else whole.memory)
    assert {share.memory for share in shares} <= {memory * GIB}


def test_configured_sizes_may_exceed_the_device() -> None:
    shares = sharing.split(sharing.whole_device(H100[0]), NvidiaShare(replicas=4, memory=40 * GIB, percent=50))
    assert [(share.memory, share.percent) for share in shares] == [(40 * GIB, 50)] * 4


def test_mig_devices_are_shared_like_gpus() -> None:
    parts = [sharing.whole_device(MIG[0], mig) for mig in MIG[0].mig]
    shares = sharing.split_all(parts, NvidiaShare(replicas=2))
    assert [share.index for share in shares][:3] == ["0:0", "0:0", "0:1"]
    assert shares[0].id == f"{MIG[0].mig[0].uuid}::0"
    assert shares[0].memory == 5 * GIB


def test_a_device_without_a_share_is_whole() -> None:
    [unit] = sharing.split_all([sharing.whole_device(H100[0])], None)
    assert (unit.id, unit.replica, unit.percent) == (H100[0].uuid, None, 100)


@pytest.mark.parametrize("sizes", [{}, {"replicas": -1}, {"percent": 101}, {"replicas": 1, "most": -1}])
def test_an_impossible_share_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError)):
        config.check(msgspec.convert({"share": sizes}, NvidiaConfig))
