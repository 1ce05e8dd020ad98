"""What claims select by is checked where it is made: for one wrong value an API server refuses a whole slice."""

import re
import string
from collections.abc import Callable, Mapping
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from plugwright.attributes import Capacity, Consumption, CounterSet, Version, is_published, whole_quantity
from plugwright.errors import InvalidValue
from plugwright.model import Device

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # however busy the machine is

C_IDENTIFIER = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,31}", fullmatch=True)
LABEL = st.from_regex(r"[a-z0-9](?:[-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
DOMAIN = st.lists(LABEL, min_size=1, max_size=4).map(".".join)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=16),
    st.text(string.printable, max_size=64),
)


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(InvalidValue) as refused:
        make()
    return str(refused.value)


def with_attribute(name: object, value: object = "x") -> Device:
    return Device("st0", attributes={name: value})  # type: ignore[dict-item]


@settings(steady, max_examples=40)  # of up to 32 attributes
@given(st.dictionaries(st.one_of(C_IDENTIFIER, st.builds("{}/{}".format, DOMAIN, C_IDENTIFIER)), VALUES, max_size=32))
def test_attributes_within_the_limits_are_taken_as_they_are(attributes: dict[str, object]) -> None:
    assert dict(Device("st0", attributes=attributes).attributes) == attributes


GOOD_NAMES = [
    "a",
    "_",
    "Model",
    "a" * 32,
    "example.com/a",
    f"{'d' * 63}/a",
    "1.2/x_1",
    "resource.kubernetes.io/pcieRoot",
]
BAD_NAMES: list[object] = ["", "1a", "a-b", "a.b", "a b", "ä", "a\n", "a" * 33, "/a", "a/", "a/b/c", "a_b.com/x"]
BAD_NAMES += [f"{'d' * 64}/a", "Example.com/a", "-a.com/x", "a..b/x", "a.com /x", "\udcff"]


def test_names_are_c_identifiers_perhaps_of_a_domain() -> None:
    for name in GOOD_NAMES:
        assert with_attribute(name).attributes[name] == "x"
        assert Device("st0", capacity={name: 1}).capacity[name] == Capacity(1)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_any_other_name_is_refused_with_the_device(name: str) -> None:
    rule = "must have at most 32 letters, digits and '_', no digit first, with at most a DNS name of 63 bytes"
    assert f"attribute values of 'st0' {rule}" in refusal(lambda: with_attribute(name))
    assert f"capacity values of 'st0' {rule}" in refusal(lambda: Device("st0", capacity={name: 1}))


@pytest.mark.parametrize("name", [None, 7, ("a",), b"a"])
def test_a_name_that_is_no_text_is_refused(name: object) -> None:
    assert "'st0'" in refusal(lambda: with_attribute(name))
    assert "'st0'" in refusal(lambda: with_attribute(name, ["the plugin's own"]))
    assert "'st0'" in refusal(lambda: Device("st0", capacity={name: 1}))  # type: ignore[dict-item]


@steady
@given(st.text(max_size=80))
def test_a_text_has_at_most_64_bytes_of_unicode(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 1000
    if size <= 64:
        assert with_attribute("a", text).attributes["a"] == text
    else:
        assert "attribute a of 'st0' must" in refusal(lambda: with_attribute("a", text))


def test_a_text_is_measured_in_bytes() -> None:
    assert with_attribute("a", "ä" * 32).attributes["a"] == "ä" * 32
    assert refusal(lambda: with_attribute("a", "ä" * 33)).startswith(
        "attribute a of 'st0' must have at most 64 bytes, got 66 in "
    )
    assert "valid Unicode" in refusal(lambda: with_attribute("a", "\udcff"))


def test_an_integer_fits_into_64_bits() -> None:
    for number in (-(2**63), 2**63 - 1, 0, -1):
        assert with_attribute("a", number).attributes["a"] == number
    message = "attribute a of 'st0' must fit into 64 bits, got"
    assert refusal(lambda: with_attribute("a", 2**63)) == f"{message} {2**63}"
    assert refusal(lambda: with_attribute("a", -(2**63) - 1)) == f"{message} {-(2**63) - 1}"
    assert refusal(lambda: with_attribute("a", 10**5000)) == f"{message} a number that large"


def test_values_of_other_kinds_are_the_plugins_own() -> None:
    own = {"links": ["st1"], "dashes-too": {"a": 2**70}, "none": None, "half": 0.5, "a text": b"x" * 100}
    assert dict(Device("st0", attributes=own).attributes) == own
    assert not any(map(is_published, own.values()))


def test_a_device_has_32_attributes_and_capacities_together() -> None:
    own = {f"own {number}": [number] for number in range(100)}
    attributes = {f"a{number}": number for number in range(30)} | own
    assert len(Device("st0", attributes=attributes, capacity={"m": 1, "n": 2}).attributes) == 130
    assert refusal(lambda: Device("st0", attributes=attributes, capacity={"m": 1, "n": 2, "o": 3})) == (
        "'st0' must have at most 32 attributes and capacities together, got 33"
    )
    assert "got 33" in refusal(lambda: Device("st0", attributes={f"a{number}": "" for number in range(33)}))


GOOD_VERSIONS = ["0.0.0", "570.86.15", "1.2.3-rc.1+build.5", "1.0.0-0a", "1.0.0+001", f"1.0.0+{'a' * 58}"]
BAD_VERSIONS: list[object] = [
    "",
    "1",
    "1.2",
    "v1.2.3",
    "535.104.05",
    "1.2.3.4",
    "1.2.3-01",
    "1.2.3-",
    "1.2.3+",
    " 1.2.3",
]
BAD_VERSIONS += ["1.2.3\n", "1.2.٣", f"1.0.0+{'a' * 59}", None, 1, b"1.2.3"]


def test_a_version_follows_semantic_versioning() -> None:
    for text in GOOD_VERSIONS:
        version = Version(text)
        assert version == text
        assert isinstance(with_attribute("driver", version).attributes["driver"], Version)


@pytest.mark.parametrize("text", BAD_VERSIONS)
def test_any_other_version_is_refused(text: str) -> None:
    assert "must be MAJOR.MINOR.PATCH without leading zeros, at most 64 bytes" in refusal(lambda: Version(text))


@steady
@given(st.integers(0, 2**64), st.sampled_from(["", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]))
def test_a_quantity_is_its_number_times_its_unit(number: int, unit: str) -> None:
    power = " kMGTPE".index(unit[:1].replace("K", "k") or " ")
    size = number * (1024 if unit.endswith("i") else 1000) ** power
    if size < 2**63:
        assert whole_quantity("it", f"{number}{unit}") == size
    else:
        assert refusal(lambda: whole_quantity("it", f"{number}{unit}")).startswith("it must be below 8Ei, got ")


NO_QUANTITIES: list[object] = ["", "Gi", "-1", "1.5Gi", "1 Gi", "1gi", "1K", "1m", "٣", "1e3", "9" * 32]
NO_QUANTITIES += [-1, True, 1.5, None, b"1", [1], 10**5000, "1Gi\n"]


@pytest.mark.parametrize(
    "quantity", NO_QUANTITIES, ids=lambda quantity: repr(quantity)[:9] if quantity != 10**5000 else ""
)
def test_anything_else_is_no_capacity_and_the_device_is_named(quantity: object) -> None:
    message = refusal(lambda: Device("st0", capacity={"memory": quantity}))  # type: ignore[dict-item]
    assert message.startswith("capacity memory of 'st0': a capacity must ")


def test_a_capacity_may_be_a_plain_quantity() -> None:
    device = Device("st0", capacity={"memory": "40Gi", "cores": 108, "tapes": Capacity("2")})
    assert {name: capacity.value for name, capacity in device.capacity.items()} == {
        "memory": 40 * 2**30,
        "cores": 108,
        "tapes": 2,
    }


def accepts(value: int, default: int | None, low: int | None, high: int | None, step: int | None) -> bool:
    """The rules of an API server for a range of requests."""
    if low is high is step is None:
        return default is None or default <= value
    if default is None or low is None or (high is not None and (high > value or low > high or default > high)):
        return False
    if low > value or default < low or default > value:
        return False
    if step is None:
        return True
    on_steps = step > 0 and not (default - low) % step and (high is None or not (high - low) % step)
    return on_steps and low + step <= value


def test_a_range_of_requests_is_one_that_the_api_server_takes() -> None:
    options = (None, 0, 1, 2, 3)
    for value, default, low, high, step in product((0, 2, 3), options, options, options, options):
        if accepts(value, default, low, high, step):
            assert Capacity(value, default, low, high, step).has_policy == (default is not None)
        else:
            refusal(lambda: Capacity(value, default, low, high, step))  # noqa: B023  called at once


def test_a_list_of_requests_is_one_that_the_api_server_takes() -> None:
    assert Capacity("80Gi", default="20Gi", values=["10Gi", "20Gi", "80Gi"]).values == (
        10 * 2**30,
        20 * 2**30,
        80 * 2**30,
    )
    assert "one of [1, 2], got 3" in refusal(lambda: Capacity(4, default=3, values=[1, 2]))
    assert "at most 10, ascending, none above 4" in refusal(lambda: Capacity(4, default=2, values=[2, 1]))
    assert "ascending" in refusal(lambda: Capacity(4, default=2, values=[2, 2]))
    assert "none above 4, got [2, 5]" in refusal(lambda: Capacity(4, default=2, values=[2, 5]))
    assert "at most 10" in refusal(lambda: Capacity(99, default=1, values=range(11)))
    assert "must have a default" in refusal(lambda: Capacity(4, values=[2]))
    assert "not both" in refusal(lambda: Capacity(4, default=2, minimum=1, values=[2]))
    assert "values must be a list" in refusal(lambda: Capacity(4, default=2, values="24"))


def test_only_a_device_that_claims_share_has_a_range_of_requests() -> None:
    memory = Capacity("80Gi", default="10Gi", minimum="1Gi", step="1Gi")
    assert Device("st0", capacity={"memory": memory}, allow_multiple=True).allow_multiple
    assert refusal(lambda: Device("st0", capacity={"memory": memory})) == (
        "capacity memory of 'st0' must have no default without allow_multiple"
    )
    assert "allow_multiple of 'st0' must be True or False, got 'no'" in refusal(
        lambda: Device("st0", allow_multiple="no")  # type: ignore[arg-type]
    )


CARD = CounterSet("card0", {"memory": "40Gi", "slices": 7})


def test_a_device_takes_of_the_counters_that_it_has_in_common_with_others() -> None:
    half = Consumption(CARD, {"slices": 3, "memory": "20Gi"})
    assert dict(half.counters) == {"memory": 20 * 2**30, "slices": 3}
    assert list(half.counters) == ["memory", "slices"]
    assert Device("st0", consumes=[half]).consumes == (half,)
    assert {half: 1}[Consumption(CARD, {"memory": 20 * 2**30, "slices": 3})] == 1
    with pytest.raises(AttributeError, match="cannot be changed"):
        half.of = CARD  # type: ignore[misc]


WRONG_COUNTERS: dict[str, Callable[[], object]] = {
    "must be a DNS label, got 'Card'": lambda: CounterSet("Card", {"a": 1}),
    "must be a DNS label, got 7": lambda: CounterSet(7, {"a": 1}),  # type: ignore[arg-type]
    "must be a DNS label, got 'a_b'": lambda: CounterSet("c", {"a_b": 1}),
    "must have 1 to 32 counters, got 0": lambda: CounterSet("c", {}),
    "must have 1 to 32 counters, got 33": lambda: CounterSet("c", {f"a{number}": 1 for number in range(33)}),
    "counters of c must be a mapping, got \\[1\\]": lambda: CounterSet("c", [1]),  # type: ignore[arg-type]
    "counter a of c must look like 40Gi, got '1.5'": lambda: CounterSet("c", {"a": "1.5"}),
    "the counter set card0 has no counter cores, decoders": lambda: Consumption(CARD, {"decoders": 1, "cores": 1}),
    "counter slices of card0 must be at most 7, got 8": lambda: Consumption(CARD, {"slices": 8}),
    "must be of a CounterSet, got 'card0'": lambda: Consumption("card0", {"a": 1}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("text", WRONG_COUNTERS)
def test_counters_that_no_pool_can_have_are_refused(text: str) -> None:
    assert re.search(text, refusal(WRONG_COUNTERS[text]))


def test_a_device_takes_of_two_different_counter_sets_at_most() -> None:
    sets = [CounterSet(f"card{number}", {"memory": 1}) for number in range(3)]
    taken = [Consumption(counters, {"memory": 1}) for counters in sets]
    assert len(Device("st0", consumes=taken[:2]).consumes) == 2
    text = "'st0' must consume of at most 2 different counter sets"
    assert text in refusal(lambda: Device("st0", consumes=taken))
    assert text in refusal(lambda: Device("st0", consumes=taken[:1] * 2))
    assert "must be Consumption values" in refusal(lambda: Device("st0", consumes=[CARD]))  # type: ignore[list-item]
    assert "must be a list" in refusal(lambda: Device("st0", consumes=None))  # type: ignore[arg-type]


def test_what_a_claim_was_given_replaces_what_the_device_has() -> None:
    memory = Capacity("80Gi", default="10Gi", minimum="1Gi", step="1Gi")
    device = Device("gpu0", capacity={"memory": memory}, allow_multiple=True)
    given_part: Mapping[str, Capacity] = {"memory": Capacity("20Gi")}
    part = device.replace(capacity=given_part, parameters={"mode": "fast"}, share_id="a-b")
    assert (part.capacity["memory"].value, part.parameters, part.share_id) == (20 * 2**30, {"mode": "fast"}, "a-b")
    assert "parameters of 'gpu0' must be a mapping" in refusal(
        lambda: Device("gpu0", parameters=None)  # type: ignore[arg-type]
    )


@steady
@given(st.text(max_size=20), st.text(max_size=40))
def test_a_device_that_turns_unhealthy_keeps_all_that_it_has(reason: str, code: str) -> None:
    assume(code)
    device = Device(
        "gpu0",
        numa=[1],
        attributes={"model": "T1"},
        physical=["0000:3b:00.0"],
        sharing="by two",
        capacity={"memory": "80Gi"},
        allow_multiple=True,
        consumes=[Consumption(CARD, {"slices": 1})],
        share_id="x",
    )
    broken = device.unhealthy(reason, code)
    assert not broken.healthy
    assert broken.replace(health=device.health, reason="", code="") == device
