"""The request policies of shared GPUs: what the API server accepts, and what claims get by default."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.nvidia.mps.node import gpu

from plugwright.attributes import Capacity
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.config import NvidiaShare, SharingStrategy, VgpuLibrary
from plugwright.plugins.nvidia.mps.sharing import MpsSharing
from plugwright.plugins.nvidia.sharing import SharingBackend
from plugwright.plugins.nvidia.time_slicing import TimeSlicing
from plugwright.plugins.nvidia.vgpu import VgpuSharing

MIB, GIB = 2**20, 2**30
H200 = 143771 * MIB


def backend(share: NvidiaShare) -> SharingBackend:
    backends: dict[SharingStrategy, Callable[[str, NvidiaShare], SharingBackend]] = {
        SharingStrategy.TIME_SLICING: TimeSlicing,
        SharingStrategy.MPS: MpsSharing,
        SharingStrategy.VGPU: VgpuSharing,
    }
    return backends[share.by]("nvidia.com/gpu", share)


def capacity(share: NvidiaShare, memory: int = H200) -> Mapping[str, Capacity]:
    [unit] = backend(share).claimable([sharing.whole_device(gpu(0, memory))])
    return backend(share).capacity(unit)


def check(policy: Capacity) -> None:
    """As the API server of Kubernetes 1.36 checks a range."""
    minimum, maximum, default = policy.minimum, policy.maximum, policy.default
    assert minimum is not None
    assert maximum is not None
    assert default is not None
    assert minimum <= default <= maximum <= policy.value
    if policy.step is not None:
        assert minimum + policy.step <= policy.value
        assert (default - minimum) % policy.step == 0
        assert (maximum - minimum) % policy.step == 0


shares = st.builds(
    NvidiaShare,
    by=st.sampled_from(SharingStrategy),
    replicas=st.integers(0, 100),
    memory=st.integers(0, 200 * GIB),
    percent=st.integers(0, 100),
    most=st.integers(0, 60),
    library=st.sampled_from(VgpuLibrary),
)


@given(shares.filter(lambda share: share.replicas or share.memory or share.percent), st.integers(0, 200 * GIB))
def test_the_api_server_accepts_every_policy(share: NvidiaShare, memory: int) -> None:
    whole = [sharing.whole_device(gpu(0, memory))]
    for unit in backend(share).claimable(whole):
        for policy in backend(share).capacity(unit).values():
            check(policy)


def test_mps_gives_whole_shares_up_to_most() -> None:
    made = capacity(NvidiaShare(by=SharingStrategy.MPS, memory=20 * GIB, percent=14, most=3))
    assert made == {
        "memory": Capacity(H200, default="20Gi", minimum="20Gi", maximum="60Gi", step="20Gi"),
        "percent": Capacity(100, default=14, minimum=14, maximum=42, step=14),
    }


def test_mps_gives_no_more_claims_than_its_server_has_clients() -> None:
    made = capacity(NvidiaShare(by=SharingStrategy.MPS, memory=2 * GIB, percent=1))
    assert made["slots"] == Capacity(48, default=1, minimum=1, maximum=1, step=1)


def test_vgpu_gives_any_memory_and_a_share_to_claims_that_do_not_say() -> None:
    made = capacity(NvidiaShare(by=SharingStrategy.VGPU, replicas=4))
    default = H200 // 4 // MIB * MIB
    assert made == {"memory": Capacity(H200, default=default, minimum=MIB, maximum=H200, step=MIB)}


def test_vgpu_gives_a_percentage_where_the_library_limits_it() -> None:
    made = capacity(NvidiaShare(by=SharingStrategy.VGPU, memory=20 * GIB, library=VgpuLibrary.HAMI, most=2))
    assert made["percent"] == Capacity(100, default=14, minimum=1, maximum=28, step=1)
    assert made["memory"].maximum == 40 * GIB


def test_time_slicing_gives_turns_and_adds_up_memory_that_claims_ask_for() -> None:
    assert capacity(NvidiaShare(replicas=4)) == {
        "slots": Capacity(4, default=1, minimum=1, maximum=4, step=1),
        "memory": Capacity(H200, default=0, minimum=0, maximum=H200, step=MIB),
    }


@pytest.mark.parametrize("by", SharingStrategy)
def test_a_gpu_too_small_for_one_share_is_not_offered(by: SharingStrategy) -> None:
    share = NvidiaShare(by=by, memory=100 * GIB)
    assert backend(share).claimable([sharing.whole_device(gpu(0, 80 * GIB))]) == []
