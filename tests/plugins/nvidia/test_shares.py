"""A device is cut into shares that can be told apart, and that say what they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright import ConfigError, Device
from plugwright.plugins.nvidia import sharing, simulated_machines
from plugwright.plugins.nvidia.sharing import Share

H100 = simulated_machines.load("hgx-h100").gpus
CUT = simulated_machines.load("hgx-h100-mig").gpus
GIB = 2**30


@given(replicas=st.integers(1, 5000))
def test_replicas_share_what_there_is(replicas: int) -> None:
    whole = sharing.whole(H100[0])
    shares = sharing.share(whole, Share(replicas=replicas))
    assert (
        len({Device(share.id).id for share in shares}) == replicas
    )  # each a device of its own, with an id that can be
    assert [share.replica for share in shares] == list(range(replicas))
    assert whole.memory - replicas < sum(share.memory for share in shares) <= whole.memory
    assert sum(share.percent for share in shares) <= 100
    assert {share.uuid for share in shares} == {whole.uuid}


@given(memory=st.integers(1, 80), percent=st.integers(0, 100))
def test_sizes_say_how_many_there_are(memory: int, percent: int) -> None:
    whole = sharing.whole(H100[0])
    shares = sharing.share(whole, Share(memory=memory * GIB, percent=percent))
    assert len(shares) == min(whole.memory // (memory * GIB), 100 // percent if percent else whole.memory)
    assert {share.memory for share in shares} <= {memory * GIB}


def test_what_is_said_is_taken_even_if_it_is_more_than_there_is() -> None:
    shares = sharing.share(sharing.whole(H100[0]), Share(replicas=4, memory=40 * GIB, percent=50))
    assert [(share.memory, share.percent) for share in shares] == [(40 * GIB, 50)] * 4


def test_parts_of_a_gpu_are_shared_like_gpus() -> None:
    parts = [sharing.whole(CUT[0], mig) for mig in CUT[0].mig]
    shares = sharing.shared(parts, Share(replicas=2))
    assert [share.index for share in shares][:3] == ["0:0", "0:0", "0:1"]
    assert shares[0].id == f"{CUT[0].mig[0].uuid}::0"
    assert shares[0].memory == 5 * GIB


def test_what_is_not_shared_is_whole() -> None:
    [unit] = sharing.shared([sharing.whole(H100[0])], None)
    assert (unit.id, unit.replica, unit.percent) == (H100[0].uuid, None, 100)


@pytest.mark.parametrize("sizes", [{}, {"replicas": -1}, {"percent": 101}, {"replicas": 1, "most": -1}])
def test_a_share_that_cannot_be_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Share(**sizes)  # type: ignore[arg-type]
