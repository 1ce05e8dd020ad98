"""The metrics page as Prometheus' own client reads it."""

import time
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from plugwright.sdk.exposition import MetricFamily, process_metrics, rendered, single
from plugwright.system.histogram import Histogram


def read(families: Sequence[MetricFamily], **common: str) -> list[tuple[str, dict[str, str], float]]:
    parsed = text_string_to_metric_families(rendered(families, common).decode())
    return [(sample.name, sample.labels, sample.value) for family in parsed for sample in family.samples]


# The parser of the client splits lines and strips as Python does; the daemon's labels are made safe by `text.clean`.
TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126)).map(str.strip)


@given(TEXTS, TEXTS, st.floats(allow_nan=False))
def test_any_label_and_value_is_read_as_it_was(text: str, node: str, value: float) -> None:
    family = MetricFamily("plugwright_odd", "Odd values", ["text"])
    family.add([text], value)
    assert read([family], node=node) == [("plugwright_odd", {"text": text, "node": node}, value)]


def test_a_label_with_a_line_end_stays_one_line() -> None:
    family = MetricFamily("plugwright_odd", "Odd values", ["text"])
    family.add(['a\n"b"\\c'], 1)
    assert rendered([family], {}).count(b"\n") == 3
    assert read([family]) == [("plugwright_odd", {"text": 'a\n"b"\\c'}, 1)]


def test_the_kind_follows_from_the_name() -> None:
    families = [single("plugwright_a_total", "A", 1), single("plugwright_b", "B", 2)]
    parsed = text_string_to_metric_families(rendered(families, {}).decode())
    assert [(family.name, family.type) for family in parsed] == [("plugwright_a", "counter"), ("plugwright_b", "gauge")]


def test_buckets_of_a_histogram_add_up() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.5, 0.6, 7.0):
        histogram.observe(value)
    family = MetricFamily("plugwright_seconds", "Seconds", ["method"])
    family.add_histogram(["Allocate"], histogram)
    found = {(name, labels.get("le")): value for name, labels, value in read([family])}
    assert found == {
        ("plugwright_seconds_bucket", "0.1"): 1,
        ("plugwright_seconds_bucket", "1.0"): 3,
        ("plugwright_seconds_bucket", "+Inf"): 4,
        ("plugwright_seconds_count", None): 4,
        ("plugwright_seconds_sum", None): 8.15,
    }


def test_the_process_is_this_one() -> None:
    found = {name: value for name, _, value in read(list(process_metrics()))}
    assert found["process_resident_memory_bytes"] > 2**20
    assert found["process_virtual_memory_bytes"] > found["process_resident_memory_bytes"]
    assert found["process_cpu_seconds_total"] > 0
    assert -2 < time.time() - found["process_start_time_seconds"] < 86400
    assert 0 < found["process_open_fds"] < found["process_max_fds"]
