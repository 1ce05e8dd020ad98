"""Random worlds beside upstream's allocator of 1.36 and 1.37: it confirms every printed cure, and none is missed.

`make test-allocator` sets the number of worlds and the first seed. Upstream's program is that of
`tests/allocator/oracle`.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace
from tests.allocator.comparing import oracle, upstream_answers
from tests.allocator.random_worlds import FEATURES
from tests.explain.test_random_worlds import NODES, changed, world
from tests.explain.worlds import CLASS

from plugwright.explain.counterfactual import REMOVED, edited
from plugwright.explain.explanation import explain_pod
from plugwright.explain.world import ApiObject, World

WORLDS = int(os.environ.get("PLUGWRIGHT_WORLDS", "0"))
SEEDS = range(seed := int(os.environ.get("PLUGWRIGHT_SEED", "0")), seed + WORLDS)
EXACTLY = ("spec", "devices", "requests", 0, "exactly")

_State: TypeAlias = tuple[Sequence[ApiObject], Sequence[ApiObject], Sequence[ApiObject]]  # slices, held, wanted


def questions(state: _State, version: str) -> Iterator[ApiObject]:
    """Whether the wanted claims can be allocated, for each node."""
    slices, held, wanted = state
    results = [result for claim in held for result in claim["status"]["allocation"]["devices"]["results"]]
    for node in NODES:
        yield {
            "version": version,
            "features": FEATURES[version],
            "node": {"metadata": {"name": node}},
            "classes": [CLASS],
            "slices": slices,
            "claims": [edited(claim, (*EXACTLY, "allocationMode"), "ExactCount") for claim in wanted],  # the default
            "allocated": [f"{entry['driver']}/{entry['pool']}/{entry['device']}" for entry in results],
        }


def state_of(before: World) -> _State:
    return before.slices, before.claims[:-1], before.claims[-1:]


def single_changes(before: World) -> Iterator[_State]:
    """Every change of one thing, made here and not by the engine."""
    slices, held, [wanted] = state_of(before)
    for place in range(len(held)):
        yield slices, [*held[:place], *held[place + 1 :]], [wanted]
    for place, published in enumerate(slices):
        others = [*slices[:place], *slices[place + 1 :]]
        if published["spec"]["pool"]["resourceSliceCount"] > 1:
            yield [*others, edited(published, ("spec", "pool", "resourceSliceCount"), 1)], held, [wanted]
        for number, device in enumerate(published["spec"]["devices"]):
            if device.get("taints"):
                yield [*others, edited(published, ("spec", "devices", number, "taints"), REMOVED)], held, [wanted]
    exactly: dict[str, Any] = wanted["spec"]["devices"]["requests"][0]["exactly"]
    tolerated = edited(wanted, (*EXACTLY, "tolerations"), [{"key": "xid", "operator": "Exists"}])
    edits = [
        tolerated,
        edited(wanted, (*EXACTLY, "selectors"), []),
        edited(wanted, ("spec", "devices", "constraints"), []),
    ]
    edits += [edited(wanted, (*EXACTLY, "count"), count) for count in range(1, exactly["count"])]
    for entry in edits:
        yield slices, held, [entry]


@pytest.mark.skipif(not WORLDS, reason="needs Go modules: make test-allocator")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_upstream_confirms_every_printed_cure_and_no_single_change_is_missed(version: str, tmp_path: Path) -> None:
    worlds = {seed: replace(world(seed), version=version) for seed in SEEDS}
    found = {seed: explain_pod(before, before.pods[-1]) for seed, before in worlds.items()}
    states = {(seed, "own", 0): state_of(before) for seed, before in worlds.items()}
    for seed, before in worlds.items():
        states |= {(seed, "cure", place): changed(before, cure) for place, cure in enumerate(found[seed].cures)}
        states |= {(seed, "single", place): state for place, state in enumerate(single_changes(before))}
    asked = [question for state in states.values() for question in questions(state, version)]
    answers = [bool(reply.get("results")) for reply in upstream_answers(oracle(version, tmp_path), asked)]
    fits = {key: any(answers[place * len(NODES) :][: len(NODES)]) for place, key in enumerate(states)}
    assert {seed for seed in worlds if fits[seed, "own", 0]} == {seed for seed in worlds if found[seed].state == "fits"}
    cures = [key for key in states if key[1] == "cure"]
    assert [(key, found[key[0]].cures[key[2]].text) for key in cures if not fits[key]] == []
    curable = {key[0] for key, fit in fits.items() if key[1] == "single" and fit and not fits[key[0], "own", 0]}
    assert [seed for seed in curable if not found[seed].cures or len(found[seed].cures[0].kinds) > 1] == []
    assert len(cures) > WORLDS / 2
    assert len(curable) > WORLDS / 5
