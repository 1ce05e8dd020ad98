"""The kubelet's checkpoint, against files that the real kubelet wrote."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.errors import CheckpointCorrupt
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry

VECTORS = Path(__file__).parent.parent / "vectors"
INDEX = json.loads((VECTORS / "index.json").read_bytes())
WRITTEN = [vector["name"] for vector in INDEX]
LENIENT = {
    "pretty": "10-several-containers",
    "lowercase-keys": "10-several-containers",
    "extra-keys": "10-several-containers",
    "checksum-first": "10-several-containers",
    "missing-members": "02-empty-list",
    "missing-data": "02-empty-list",
    "numa-key-leading-zero": "06-one-pod",
}
REFUSED = {
    "checksum": "checksum: stored 3937692181, computed 3937692180",
    "checksum-missing": "checksum: stored 0, computed 3937692180",
    "order-swapped": "checksum: stored 2070980646, computed ",
    "checksum-string": r"Checksum must be a number \(3937692180 for this content\), got a text",
    "checksum-negative": r"Checksum must be an unsigned integer of 64 bits \(3937692180 for this content\), got -1",
    "checksum-float": r"Checksum must be an unsigned integer of 64 bits .*got 3937692180\.0",
    "numa-key": "entry 1 of PodDeviceEntries: NUMA node in DeviceIDs must be an integer of 64 bits, got 'zero'",
    "base64-nopad": "AllocResp is not padded base64",
    "truncated": "does not parse: Unterminated string",
    "trailing": "does not parse: Extra data",
}
HOSTILE = {
    "an empty file": (b"", "the file is empty"),
    "a byte-order mark": (b'\xef\xbb\xbf{"Checksum":2932075448}', "does not parse"),
    "UTF-16": ('{"Checksum":2932075448}'.encode("utf-16"), "byte 0 is not UTF-8"),
    "bytes that are not UTF-8": (b'{"\xff":1}', "byte 2 is not UTF-8"),
    "nothing but null": (b"null", "stored 0, computed 2932075448"),
    "nothing but a list": (b"[]", "the file must be an object, got a list"),
    "lists without end": (b"[" * 100_000, "nested too deeply"),
    "objects without end": (b'{"a":' * 100_000, "nested too deeply"),
    "a checksum without end": (b'{"Checksum":' + b"9" * 10_000 + b"}", "Checksum must be .* got 9{40}$"),
    "a checksum with an exponent": (b'{"Checksum":1e999999999}', "Checksum must be .* got 1e999999999"),
    "a checksum that is true": (b'{"Checksum":true}', "Checksum must be a number .* got a boolean"),
    "a checksum that is not a number": (b'{"Checksum":NaN}', "NaN is not a number"),
    "infinity in an unknown member": (b'{"x":-Infinity,"Checksum":2932075448}', "-Infinity is not a number"),
    "data that is a number": (b'{"Data":1}', "Data must be an object, got a number"),
    "entries that are an object": (
        b'{"Data":{"PodDeviceEntries":{}}}',
        "PodDeviceEntries must be a list, got an object",
    ),
    "an entry that is a text": (
        b'{"Data":{"PodDeviceEntries":["a"]}}',
        "entry 1 of PodDeviceEntries: it must be an object, got a text",
    ),
    "resources that are a list": (
        b'{"Data":{"RegisteredDevices":[]}}',
        "RegisteredDevices must be an object, got a list",
    ),
    "a device that is a number": (
        b'{"Data":{"RegisteredDevices":{"r":[1]}}}',
        r"RegisteredDevices\['r'\] must be a text, got a number",
    ),
    "half a pair as resource": (b'{"Data":{"RegisteredDevices":{"\\ud800":[]}}}', "half of a surrogate pair"),
    "half a pair as device": (b'{"Data":{"RegisteredDevices":{"r":["\\udc00"]}}}', "half of a surrogate pair"),
}
HOSTILE_MEMBERS = {
    '"PodUID":1': "PodUID must be a text, got a number",
    '"ContainerName":[]': "ContainerName must be a text, got a list",
    '"ResourceName":{}': "ResourceName must be a text, got an object",
    '"DeviceIDs":["dev-a"]': "DeviceIDs must be an object, got a list",
    '"DeviceIDs":{"0":"dev-a"}': r"DeviceIDs\['0'\] must be a list, got a text",
    '"DeviceIDs":{"":[]}': "must be an integer of 64 bits, got ''",
    '"DeviceIDs":{"1_0":[]}': "must be an integer of 64 bits, got '1_0'",
    '"DeviceIDs":{"٣":[]}': "must be an integer of 64 bits, got '٣'",
    '"DeviceIDs":{"9223372036854775808":[]}': "must be an integer of 64 bits, got '9223372036854775808'",
    f'"DeviceIDs":{{"{"1" * 5000}":[]}}': "must be an integer of 64 bits, got ",
    '"AllocResp":[256]': "AllocResp must be base64 or bytes, 0 to 255, got 256",
    '"AllocResp":[-0]': "AllocResp must be base64 or bytes, 0 to 255, got -0",
    '"AllocResp":[1.0]': "AllocResp must be base64 or bytes, 0 to 255, got 1.0",
    '"AllocResp":["1"]': "AllocResp must be base64 or bytes, 0 to 255, got a text",
    f'"AllocResp":[{"9" * 5000}]': "AllocResp must be base64 or bytes, 0 to 255, got 9999",
    '"AllocResp":"AAAA="': "AllocResp is not padded base64",
    '"AllocResp":"A==="': "AllocResp is not padded base64",
    '"AllocResp":"__8="': "AllocResp is not padded base64",
}

texts = st.text(max_size=12)
lists = st.none() | st.lists(texts, max_size=4).map(tuple)
nodes = st.integers(-(2**63), 2**63 - 1)
entries = st.builds(
    PodDevicesEntry,
    pod_uid=texts,
    container=texts,
    resource=texts,
    devices=st.none() | st.dictionaries(nodes, lists, max_size=4),
    answer=st.none() | st.binary(max_size=12),
)
checkpoints = st.builds(
    Checkpoint,
    entries=st.none() | st.lists(entries, max_size=4).map(tuple),
    registered=st.none() | st.dictionaries(texts, lists, max_size=4),
)
names = st.sampled_from(
    [
        "Data",
        "Checksum",
        "PodDeviceEntries",
        "RegisteredDevices",
        "PodUID",
        "ResourceName",
        "DeviceIDs",
        "AllocResp",
        "0",
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
)


def written(name: str) -> bytes:
    return (VECTORS / f"checkpoint-{name}.json").read_bytes()


def signed(content: str, meaning: Checkpoint) -> bytes:
    return f'{{"Data":{content},"Checksum":{checkpoint.checksum(meaning)}}}'.encode()


def fnv1a(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 % 2**32
    return value


def refused(data: bytes) -> bool:
    try:
        checkpoint.decode(data)
    except CheckpointCorrupt as error:
        return len(str(error).splitlines()) == 1
    return False


def test_no_vector_is_left_out() -> None:
    names = {path.name for path in VECTORS.glob("*.json")} - {"index.json", "generic-device-plugin.json"}
    assert names == {
        *(f"checkpoint-{name}.json" for name in WRITTEN),
        *(f"lenient-{name}.json" for name in LENIENT),
        *(f"negative-{name}.json" for name in REFUSED),
    }


@pytest.mark.parametrize("name", WRITTEN)
def test_kubelets_file_is_encoded_to_the_same_bytes(name: str) -> None:
    assert checkpoint.encode(checkpoint.decode(written(name))) == written(name)


@pytest.mark.parametrize("vector", INDEX, ids=WRITTEN)
def test_the_text_that_go_prints_is_what_is_hashed(vector: dict[str, object]) -> None:
    dump = (VECTORS / f"checkpoint-{vector['name']}.dump.txt").read_bytes()
    computed = checkpoint.checksum(checkpoint.decode(written(str(vector["name"]))))
    assert computed == fnv1a(dump) == vector["checksum"]


@pytest.mark.parametrize(("spelling", "meaning"), LENIENT.items(), ids=LENIENT)
def test_other_spelling_decodes_to_the_same_values(spelling: str, meaning: str) -> None:
    data = (VECTORS / f"lenient-{spelling}.json").read_bytes()
    assert checkpoint.decode(data) == checkpoint.decode(written(meaning))


@pytest.mark.parametrize(("name", "reason"), REFUSED.items(), ids=REFUSED)
def test_file_that_the_kubelet_refuses_is_refused(name: str, reason: str) -> None:
    with pytest.raises(CheckpointCorrupt, match=reason):
        checkpoint.decode((VECTORS / f"negative-{name}.json").read_bytes())


@pytest.mark.parametrize(("data", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused(data: bytes, reason: str) -> None:
    assert refused(data)
    with pytest.raises(CheckpointCorrupt, match=reason):
        checkpoint.decode(data)


@pytest.mark.parametrize(("member", "reason"), HOSTILE_MEMBERS.items(), ids=range(len(HOSTILE_MEMBERS)))
def test_a_member_of_the_wrong_kind_is_refused(member: str, reason: str) -> None:
    data = f'{{"Data":{{"PodDeviceEntries":[{{{member}}}]}},"Checksum":1}}'.encode()
    assert refused(data)
    with pytest.raises(CheckpointCorrupt, match=reason):
        checkpoint.decode(data)


def test_a_changed_byte_is_noticed() -> None:
    data = written("06-one-pod")
    for position, byte in enumerate(data):
        assert refused(data[:position] + bytes([byte ^ 1]) + data[position + 1 :]), position


def test_null_and_empty_are_distinguished() -> None:
    assert checkpoint.decode(written("01-empty-null")) == Checkpoint(entries=None, registered={})
    assert checkpoint.decode(written("02-empty-list")) == Checkpoint(entries=(), registered={})
    assert checkpoint.decode(written("03-all-null")) == Checkpoint(entries=None, registered=None)


def test_an_entry_is_read_whole() -> None:
    content = checkpoint.decode(written("13-alloc-env"))
    entry = PodDevicesEntry(
        pod_uid="0f2a8f5e-0c9c-4a5b-9b57-0d4f2f6f6a09",
        container="main",
        resource="example.com/gpu",
        devices={0: ("g0",)},
        answer=b"\n\x09\n\x05EMPTY\x12\x00\n\x0d\n\x07VISIBLE\x12\x02g0",
    )
    assert content == Checkpoint(entries=(entry,), registered={"example.com/gpu": ("g0",)})


def test_last_of_duplicate_members_wins_whatever_its_case() -> None:
    meaning = Checkpoint(entries=(), registered={"r": ("c",)})
    content = '{"RegisteredDevices":{"r":["a"]},"registereddevices":{"r":["b"]},"RegisteredDevices":{"r":["c"]}}'
    assert checkpoint.decode(signed(content, meaning)) == meaning


def test_an_entry_without_members_has_empty_texts_and_no_devices() -> None:
    nothing = PodDevicesEntry(pod_uid="", container="", resource="", devices=None, answer=None)
    meaning = Checkpoint(entries=(nothing, nothing, nothing), registered={})
    content = '{"PodDeviceEntries":[{},null,{"PodUID":null,"ContainerName":null,"ResourceName":null}]}'
    assert checkpoint.decode(signed(content, meaning)) == meaning


def test_a_null_among_devices_is_an_empty_text() -> None:
    meaning = Checkpoint(entries=(), registered={"r": ("a", "")})
    assert checkpoint.decode(signed('{"RegisteredDevices":{"r":["a",null]}}', meaning)) == meaning


def test_line_breaks_in_base64_do_no_harm() -> None:
    entry = PodDevicesEntry(pod_uid="", container="", resource="", devices=None, answer=b"\x00\xff")
    meaning = Checkpoint(entries=(entry,), registered={})
    assert checkpoint.decode(signed('{"PodDeviceEntries":[{"AllocResp":"AP\\r\\n8="}]}', meaning)) == meaning


@pytest.mark.parametrize(("written", "answer"), [("[0,255]", b"\x00\xff"), ("[]", b""), ("[null,3]", b"\x00\x03")])
def test_an_array_of_numbers_is_read_as_bytes(written: str, answer: bytes) -> None:
    entry = PodDevicesEntry(pod_uid="", container="", resource="", devices=None, answer=answer)
    meaning = Checkpoint(entries=(entry,), registered={})
    assert checkpoint.decode(signed(f'{{"PodDeviceEntries":[{{"AllocResp":{written}}}]}}', meaning)) == meaning


def test_numbers_of_any_size_are_accepted_in_unknown_members() -> None:
    data = b'{"Future":[' + b"9" * 10_000 + b',1e999999999],"Checksum":2932075448}'
    assert checkpoint.decode(data) == Checkpoint(entries=(), registered={})


def test_texts_are_escaped_as_go_does() -> None:
    text = '"\\\b\f\n\r\t\0\x1f<>&\u2028\u2029\x7fé🔧/'
    data = checkpoint.encode(Checkpoint(entries=None, registered={text: None}))
    expected = '"\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001f\\u003c\\u003e\\u0026\\u2028\\u2029\x7fé🔧/":null'
    assert f'"RegisteredDevices":{{{expected}}}'.encode() in data


def test_held_joins_the_containers_of_one_resource() -> None:
    content = checkpoint.decode(written("10-several-containers"))
    assert checkpoint.held_by_resource(content)["example.com/gpu"] == {"g0": (0,), "g1": (0,), "g2": (1,)}
    assert checkpoint.held_by_resource(content).keys() == {"example.com/gpu"}


def test_held_is_sorted_and_a_negative_node_is_none() -> None:
    entry = PodDevicesEntry("pod", "main", "r", {10: ("b",), -1: ("c", "a"), 2: ("b",), -7: ("b",), 3: None}, None)
    unset = PodDevicesEntry("pod", "init", "r", None, None)
    devices = checkpoint.held_by_resource(Checkpoint(entries=(entry, unset), registered=None))["r"]
    assert list(devices.items()) == [("a", ()), ("b", (2, 10)), ("c", ())]


def test_nothing_is_held_where_there_are_no_pods() -> None:
    assert checkpoint.held_by_resource(checkpoint.decode(written("01-empty-null"))) == {}


@given(checkpoints)
def test_encoded_checkpoint_decodes_to_the_same_values(value: Checkpoint) -> None:
    data = checkpoint.encode(value)
    assert checkpoint.decode(data) == value
    assert checkpoint.encode(checkpoint.decode(data)) == data


@given(st.binary())
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    assert refused(data)


@given(json_values)
def test_arbitrary_json_is_read_or_refused(value: object) -> None:
    refused(json.dumps(value).encode())


@given(st.sampled_from(WRITTEN), st.data())
def test_a_damaged_file_is_refused_or_means_the_same(name: str, data: st.DataObject) -> None:
    original = written(name)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(original))] * 2)))
    damaged = original[:start] + data.draw(st.binary(max_size=3)) + original[end:]
    assert refused(damaged) or checkpoint.decode(damaged) == checkpoint.decode(original)
