"""Random worlds: a printed cure is one that the allocator confirms on a world that was changed by hand."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.explain.worlds import CLASS, DRIVER, claim, device, node, pod, published, selected

from plugwright.allocator import AllocatedState, ClaimAllocator, features_of
from plugwright.explain.counterfactual import REMOVED, edited
from plugwright.explain.cure_report import CureReport
from plugwright.explain.explanation import explain_pod
from plugwright.explain.world import ApiObject, World, identity

WORLDS = 150
NODES = ("n1", "n2")


def world(seed: int) -> World:
    """Two nodes with up to four devices each; some are tainted, held, or of another model."""
    chance = random.Random(seed)
    slices, claims, pods = [], [], []
    for on in NODES:
        devices = [
            device(name, chance.choice(["", "", "xid"]), numa=chance.randint(0, 1), model=chance.randint(1, 2))
            for name in "abcd"[: chance.randint(1, 4)]
        ]
        slices.append(published(*devices, on=on, count=chance.choice([1] * 9 + [2])))
        for entry in devices:
            if chance.random() < 0.4 and "taints" not in entry:
                name = f"{on}-{entry['name']}"
                held = claim(name, entry["name"], (name,) if chance.random() < 0.8 else ())
                held["status"]["allocation"]["devices"]["results"][0]["pool"] = on
                claims.append(held)
                pods.append(pod(name, on=on, claim=name))
    exactly: dict[str, Any] = {"count": chance.randint(1, 4)}
    if chance.random() < 0.4:
        exactly["selectors"] = selected(f'device.attributes["{DRIVER}"].model == {chance.randint(1, 3)}')
    match = [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/numa"}] if chance.random() < 0.4 else []
    claims.append(claim("wanted", constraints=match, **exactly))
    pods.append(pod("wants", claim="wanted"))
    return World(tuple(map(node, NODES)), tuple(pods), tuple(slices), (CLASS,), tuple(claims))


def changed(before: World, cure: CureReport) -> tuple[list[ApiObject], list[ApiObject], list[ApiObject]]:
    """Slices, claims that are allocated, and the wanted claim, after the steps of a cure were made."""
    slices, claims = {identity(entry)[1]: entry for entry in before.slices}, list(before.claims[:-1])
    wanted = before.claims[-1]
    for step in cure.changes:
        if step.verb == "recover":
            slices[step.name] = {**slices[step.name], "spec": step.value}
        elif step.verb == "delete":  # a claim has the name of its pod here
            claims = [entry for entry in claims if identity(entry)[1] != step.name]
    for step in sorted(cure.changes, key=lambda step: [str(part) for part in step.path], reverse=True):
        if step.verb == "edit":
            wanted = edited(wanted, step.path, REMOVED if step.removes else step.value)
    return [*slices.values()], claims, [wanted]


def fits(slices: list[ApiObject], claims: list[ApiObject], wanted: list[ApiObject]) -> bool:
    allocator = ClaimAllocator(features_of("1.37"), slices, [CLASS], AllocatedState.of_claims(claims))
    return any(allocator.allocate({"metadata": {"name": name}}, wanted).results for name in NODES)


def single_endings(before: World) -> Iterator[bool]:
    """Whether the claim could be allocated without each of the others."""
    for claims in ([*before.claims[:place], *before.claims[place + 1 : -1]] for place in range(len(before.claims) - 1)):
        yield fits([*before.slices], claims, [before.claims[-1]])


@pytest.mark.parametrize("part", range(5))
def test_every_printed_cure_is_confirmed_by_the_allocator(part: int) -> None:
    waiting = cured = 0
    for seed in range(part * WORLDS // 5, (part + 1) * WORLDS // 5):
        before = world(seed)
        explanation = explain_pod(before, before.pods[-1])
        could = fits([*before.slices], [*before.claims[:-1]], [before.claims[-1]])
        assert (explanation.state == "fits") == could, seed
        if could:
            continue
        waiting += 1
        cured += bool(explanation.cures)
        for cure in explanation.cures:
            assert fits(*changed(before, cure)), (seed, cure)
        if any(single_endings(before)):  # one relaxation is enough, so one is found
            assert len(explanation.cures[0].kinds) == 1, seed
    assert waiting > WORLDS // 5 // 10
    assert cured
