"""The incremental encoder: byte for byte the result of `encode`, whatever changed in between."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.protocol.checkpoint_encoder import CheckpointEncoder

VECTORS = sorted((Path(__file__).parent.parent / "vectors").glob("checkpoint-*.json"))

texts = st.text(max_size=8)
lists = st.none() | st.lists(texts, max_size=3).map(tuple)
entries = st.builds(
    PodDevicesEntry,
    pod_uid=texts,
    container=texts,
    resource=texts,
    devices=st.none() | st.dictionaries(st.integers(-1, 12), lists, max_size=3),
    answer=st.none() | st.binary(max_size=8),
)
registered = st.none() | st.dictionaries(texts, lists, max_size=4)


@dataclass
class Changing:
    """A checkpoint that is changed in the ways that a kubelet changes its own."""

    entries: list[PodDevicesEntry] = field(default_factory=list)
    registered: dict[str, tuple[str, ...] | None] | None = field(default_factory=dict)
    null: bool = False

    def now(self) -> Checkpoint:
        return Checkpoint(None if self.null else tuple(self.entries), self.registered)

    def change(self, what: str, draw: st.DrawFn) -> None:
        if what == "add":
            self.entries.extend(draw(st.lists(entries, min_size=1, max_size=3)))
        elif what == "remove" and self.entries:
            del self.entries[draw(st.integers(0, len(self.entries) - 1))]
        elif what == "replace" and self.entries:
            self.entries[draw(st.integers(0, len(self.entries) - 1))] = draw(entries)
        elif what == "reorder":
            self.entries = draw(st.permutations(self.entries))
        elif what == "repeat" and self.entries:
            self.entries.insert(0, draw(st.sampled_from(self.entries)))
        elif what == "null":
            self.null = not self.null
        elif what == "registered":
            self.registered = draw(registered)
        elif what == "a list" and self.registered:
            self.registered = {**self.registered, draw(st.sampled_from(sorted(self.registered))): draw(lists)}


CHANGES = ["add", "remove", "replace", "reorder", "repeat", "null", "registered", "a list", "nothing"]


@st.composite
def histories(draw: st.DrawFn) -> list[Checkpoint]:
    state, states = Changing(), []
    for what in draw(st.lists(st.sampled_from(CHANGES), max_size=12)):
        state.change(what, draw)
        states.append(state.now())
    return states


def entry(number: int) -> PodDevicesEntry:
    device_id = f"gpu-{number}"
    return PodDevicesEntry(
        f"pod-{number:05}", "main", "example.com/gpu", {number % 2: (device_id,)}, device_id.encode()
    )


@given(histories())
@settings(max_examples=200)
def test_encoder_gives_the_bytes_of_encode_after_any_changes(history: list[Checkpoint]) -> None:
    encoder = CheckpointEncoder()
    for state in history:
        assert encoder.encode(state) == checkpoint.encode(state)


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_kubelets_files_are_encoded_to_the_same_bytes(path: Path) -> None:
    assert CheckpointEncoder().encode(checkpoint.decode(path.read_bytes())) == path.read_bytes()


def test_one_encoder_serves_every_vector_in_turn() -> None:
    encoder = CheckpointEncoder()
    for path in (*VECTORS, *reversed(VECTORS)):
        assert encoder.encode(checkpoint.decode(path.read_bytes())) == path.read_bytes()


def test_pods_that_come_and_go_for_long_keep_their_checksum() -> None:
    """Long enough for every piece to have met most of the 256 lowest bytes, and to have its table filled."""
    encoder, held = CheckpointEncoder(), [entry(number) for number in range(40)]
    devices = {"example.com/gpu": tuple(f"gpu-{number}" for number in range(40))}
    for number in range(40, 340):
        del held[number * 7 % 40]
        held.append(entry(number))
        now = Checkpoint(tuple(held), devices)
        assert encoder.encode(now) == checkpoint.encode(now)


def test_text_that_cannot_be_encoded_leaves_the_encoder_unchanged() -> None:
    encoder, first = CheckpointEncoder(), Checkpoint((entry(1), entry(2)), {})
    before = encoder.encode(first)
    broken = PodDevicesEntry("\ud800", "main", "example.com/gpu", None, None)
    for wrong in ((entry(3), broken), (*(first.entries or ()), broken), (broken,)):
        with pytest.raises(UnicodeEncodeError):
            encoder.encode(Checkpoint(wrong, {}))
    assert encoder.encode(first) == before
