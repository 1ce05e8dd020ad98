"""`plugwright checkpoint`: show, verify and diff."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.processes import ended, python
from tests.protocol.allocations import encode_allocation

from plugwright.cli.main import cli
from plugwright.errors import CheckpointCorrupt, ConfigError
from plugwright.model import Allocation, Mount
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry

ROOT = Path(__file__).parent.parent.parent
VECTORS = ROOT / "tests" / "vectors"
INDEX = {vector["name"]: vector for vector in json.loads((VECTORS / "index.json").read_bytes())}
LENIENT = sorted(VECTORS.glob("lenient-*.json"))
SPELLINGS = {path.stem: "10-several-containers" for path in LENIENT} | {
    "lenient-missing-members": "02-empty-list",
    "lenient-missing-data": "02-empty-list",
    "lenient-numa-key-leading-zero": "06-one-pod",
}
REFUSED = {
    "checksum": ("checksum", "stored 3937692181, should be 3937692180"),
    "checksum-missing": ("checksum", "stored 0, should be 3937692180"),
    "order-swapped": ("checksum", "stored 2070980646, should be 2826365586"),
    "checksum-string": ("format", "Checksum must be a number (3937692180 for this content), got a text"),
    "checksum-negative": (
        "format",
        "Checksum must be an unsigned integer of 64 bits (3937692180 for this content), got -1",
    ),
    "checksum-float": (
        "format",
        "Checksum must be an unsigned integer of 64 bits (3937692180 for this content), got 3937692180.0",
    ),
    "numa-key": (
        "format",
        "entry 1 of PodDeviceEntries: NUMA node in DeviceIDs must be an integer of 64 bits, got 'zero'",
    ),
    "base64-nopad": ("format", "entry 1 of PodDeviceEntries: AllocResp is not padded base64"),
    "truncated": ("format", "Unterminated string starting at: line 1 column 231 (char 230)"),
    "trailing": ("format", "Extra data: line 1 column 253 (char 252)"),
}
ANSWER = Allocation(
    env={"VISIBLE": "g0"},
    mounts=[Mount("/usr/lib/vendor", "/opt/lib", read_only=True), "/scratch"],
    nodes=["/dev/gpu0"],
    annotations={"note": "café"},
    cdi=["vendor.com/gpu=g0"],
)


def vector(name: str) -> str:
    return str(VECTORS / f"checkpoint-{name}.json")


def call(*arguments: object, **options: Any) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", *map(str, arguments)], **options)


def report(*arguments: object) -> Any:
    return json.loads(call(*arguments, "--output", "json").stdout)


def holding(*entries: PodDevicesEntry, registered: tuple[str, ...] = ("g0", "g1")) -> Checkpoint:
    return Checkpoint(entries, {"example.com/gpu": registered})


def entry(pod: str, *device_ids: str, answer: bytes = b"", node: int = 0) -> PodDevicesEntry:
    return PodDevicesEntry(pod, "main", "example.com/gpu", {node: device_ids}, answer)


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Two pods, one of which got everything that a plugin can give."""
    content = holding(entry("pod-b", "g1", node=-1), entry("pod-a", "g0", answer=encode_allocation(ANSWER)))
    return written(tmp_path / "full.json", content)


def written(path: Path, content: Checkpoint) -> Path:
    path.write_bytes(checkpoint.encode(content))
    return path


@pytest.mark.parametrize("name", INDEX)
def test_every_file_of_the_kubelet_is_shown_and_good(name: str) -> None:
    result = call("show", vector(name))
    assert (result.exit_code, result.stderr) == (0, "")
    content = checkpoint.decode(Path(vector(name)).read_bytes())
    assert result.output.count("\npod ") + result.output.startswith("pod ") == len(content.entries or ())
    result = call("verify", vector(name))
    assert result.exit_code == 0
    assert f"{vector(name)}: good: " in result.output
    assert f"checksum {INDEX[name]['checksum']}\n" in result.output


@pytest.mark.parametrize("name", INDEX)
def test_json_has_every_entry_and_list(name: str) -> None:
    content = checkpoint.decode(Path(vector(name)).read_bytes())
    shown = report("show", vector(name))
    assert shown["checksum"] == {"stored": INDEX[name]["checksum"], "computed": INDEX[name]["checksum"]}
    assert sorted((entry["pod"], entry["container"], entry["resource"]) for entry in shown["entries"]) == sorted(
        (entry.pod_uid, entry.container, entry.resource) for entry in content.entries or ()
    )
    assert shown["registered"] == {key: sorted(value or ()) for key, value in (content.registered or {}).items()}


@pytest.mark.parametrize("path", LENIENT, ids=lambda path: path.stem)
def test_another_spelling_is_good_and_no_difference(path: Path) -> None:
    assert call("verify", path).exit_code == 0
    result = call("diff", path, vector(SPELLINGS[path.stem]))
    assert (result.exit_code, result.output) == (0, "no differences\n")


@pytest.mark.parametrize(("name", "finding"), REFUSED.items(), ids=REFUSED)
def test_verify_names_the_part_that_the_kubelet_refuses(name: str, finding: tuple[str, str]) -> None:
    path = VECTORS / f"negative-{name}.json"
    result = call("verify", path)
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.output.splitlines()[0] == f"{path}: {finding[0]}: {finding[1]}"
    shown = report("verify", path)
    assert shown["good"] is False
    assert shown["findings"][0] == {"part": finding[0], "problem": finding[1]}


@pytest.mark.parametrize("name", REFUSED)
def test_diff_refuses_a_file_that_the_kubelet_refuses(name: str) -> None:
    path = VECTORS / f"negative-{name}.json"
    result = call("diff", path, vector("06-one-pod"))
    assert (result.exit_code, result.output) == (1, "")
    assert isinstance(result.exception, CheckpointCorrupt)
    assert str(result.exception).startswith(str(path))


def test_no_vector_is_left_out() -> None:
    left = {path.name for path in VECTORS.glob("*.json")} - {
        "generic-device-plugin.json",
        "index.json",
        *(f"checkpoint-{name}.json" for name in INDEX),
    }
    assert left == {*(path.name for path in LENIENT), *(f"negative-{name}.json" for name in REFUSED)}


def test_show_has_the_devices_and_the_response_of_every_container(full: Path) -> None:
    assert call("show", full).output.splitlines() == [
        "pod pod-a, container main, example.com/gpu",
        "    device      g0 (NUMA 0)",
        "    env         VISIBLE=g0",
        "    mount       /usr/lib/vendor -> /opt/lib (read-only)",
        "    mount       /scratch -> /scratch",
        "    node        /dev/gpu0 -> /dev/gpu0 (rw)",
        "    annotation  note=café",
        "    cdi         vendor.com/gpu=g0",
        "pod pod-b, container main, example.com/gpu",
        "    device      g1 (NUMA none)",
        "example.com/gpu: 2 healthy, 2 held",
    ]


def test_show_as_json_decodes_the_answer(full: Path) -> None:
    shown = report("show", full)
    assert shown["file"] == str(full)
    assert shown["layout"] == "by NUMA node"
    first, second = shown["entries"]
    assert first == {
        "pod": "pod-a",
        "container": "main",
        "resource": "example.com/gpu",
        "devices": [{"id": "g0", "numa": [0]}],
        "answer": {
            "env": {"VISIBLE": "g0"},
            "mounts": [
                {"host_path": "/usr/lib/vendor", "container_path": "/opt/lib", "read_only": True},
                {"host_path": "/scratch", "container_path": "/scratch", "read_only": False},
            ],
            "nodes": [{"host_path": "/dev/gpu0", "container_path": "/dev/gpu0", "permissions": "rw"}],
            "annotations": {"note": "café"},
            "cdi": ["vendor.com/gpu=g0"],
        },
        "problem": "",
    }
    assert (second["pod"], second["devices"]) == ("pod-b", [{"id": "g1", "numa": []}])


def test_a_file_with_a_wrong_checksum_is_shown_and_is_an_error() -> None:
    path = VECTORS / "negative-checksum.json"
    result = call("show", path)
    assert result.exit_code == 1
    assert "    device      dev-a (NUMA 0)\n" in result.output
    text = f"{path} does not match its checksum: stored 3937692181, computed 3937692180"
    assert str(result.exception).startswith(text)


def test_control_characters_in_names_are_quoted(tmp_path: Path) -> None:
    path = written(tmp_path / "bad.json", holding(entry("pod\n\x1b[2J", "g\x1b[31m")))
    result = call("show", path)
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert result.output.splitlines()[0] == r"pod 'pod\n\x1b[2J', container main, example.com/gpu"


def test_the_old_layout_is_shown_and_named(tmp_path: Path) -> None:
    one = '{"PodUID":"p","ContainerName":"c","ResourceName":"r","DeviceIDs":["x"],"AllocResp":""}'
    meaning = Checkpoint((PodDevicesEntry("p", "c", "r", {0: ("x",)}, b""),), {})
    sum_ = checkpoint.checksum(meaning, plain_lists=True)
    path = tmp_path / "old.json"
    path.write_text(f'{{"Data":{{"PodDeviceEntries":[{one}],"RegisteredDevices":{{}}}},"Checksum":{sum_}}}')
    assert call("show", path).output.startswith("written by Kubernetes 1.11 to 1.19, without NUMA nodes")
    assert "kubelets from 1.31 on refuse it" in call("verify", path).output
    assert report("show", path)["layout"] == "plain lists"


def test_verify_explains_the_usual_accidents() -> None:
    path = VECTORS / "negative-order-swapped.json"
    text = f"{path}: checksum: the stored one matches the content with PodDeviceEntries in the order 4, 3, 2, 1\n"
    assert call("verify", path).output.endswith(text)


def test_4_28_response_that_does_not_decode_is_shown(tmp_path: Path) -> None:
    path = written(tmp_path / "bad.json", holding(entry("pod-a", "g0"), entry("pod-b", "g1", answer=b"\xff")))
    result = call("verify", path)
    assert result.exit_code == 0
    good, dropped = result.output.splitlines()
    assert good.startswith(f"{path}: good: 2 entries of 2 pods, 1 resource, checksum ")
    assert dropped.startswith(
        f"{path}: entry 2: AllocResp of pod pod-b, container main, example.com/gpu: not a ContainerAllocateResponse"
    )
    assert dropped.endswith("the kubelet drops this entry")
    shown = report("verify", path)
    assert (shown["good"], shown["findings"], len(shown["dropped"])) == (True, [], 1)
    assert report("show", path)["entries"][1]["answer"] is None


def test_4_8_the_order_in_which_a_kubelet_writes_is_no_difference(tmp_path: Path) -> None:
    one, two = entry("pod-a", "g0", "g1"), entry("pod-b", "g2")
    left = written(tmp_path / "left.json", holding(one, two, registered=("g0", "g1", "g2")))
    turned = PodDevicesEntry("pod-a", "main", "example.com/gpu", {0: ("g1", "g0")}, b"")
    right = written(tmp_path / "right.json", holding(two, turned, registered=("g2", "g1", "g0")))
    result = call("diff", left, right)
    assert (result.exit_code, result.output) == (0, "no differences\n")
    assert report("diff", left, right)["differences"] == []


def test_diff_shows_the_changes_of_every_container(full: Path, tmp_path: Path) -> None:
    answer = encode_allocation(Allocation(env={"VISIBLE": "g1"}, nodes=["/dev/gpu0"]))
    new = written(
        tmp_path / "new.json",
        holding(entry("pod-a", "g0", answer=answer, node=1), entry("pod-c", "g2"), registered=("g0", "g2")),
    )
    result = call("diff", full, new)
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "healthy devices of example.com/gpu: changed",
        "-   healthy     g1",
        "+   healthy     g2",
        "pod pod-a, container main, example.com/gpu: changed",
        "-   device      g0 (NUMA 0)",
        "-   env         VISIBLE=g0",
        "-   mount       /usr/lib/vendor -> /opt/lib (read-only)",
        "-   mount       /scratch -> /scratch",
        "-   annotation  note=café",
        "-   cdi         vendor.com/gpu=g0",
        "+   device      g0 (NUMA 1)",
        "+   env         VISIBLE=g1",
        "pod pod-b, container main, example.com/gpu: removed",
        "-   device      g1 (NUMA none)",
        "pod pod-c, container main, example.com/gpu: added",
        "+   device      g2 (NUMA 0)",
    ]
    shown = report("diff", full, new)
    assert (shown["old"], shown["new"]) == (str(full), str(new))
    assert shown["differences"][0] == {
        "change": "changed", "pod": None, "container": None, "resource": "example.com/gpu",
        "removed": [{"part": "healthy", "value": "g1"}], "added": [{"part": "healthy", "value": "g2"}],
    }  # fmt: skip


@pytest.mark.parametrize("command", ["show", "verify"])
def test_default_file_is_the_kubelets_own(command: str, tmp_path: Path) -> None:
    own = tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    own.parent.mkdir()
    written(own, holding(entry("pod-a", "g0")))
    assert report(command, "--kubelet-dir", tmp_path)["file"] == str(own)
    assert report(command, "--device-plugins-dir", own.parent)["file"] == str(own)
    result = call(command, "-o", "json", env={"PLUGWRIGHT_KUBELET_DIR": str(tmp_path)})
    assert json.loads(result.stdout)["file"] == str(own)


def test_diff_with_one_file_compares_it_with_the_kubelets_own(full: Path, tmp_path: Path) -> None:
    own = tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    own.parent.mkdir()
    own.write_bytes(full.read_bytes())
    assert call("diff", full, "--kubelet-dir", tmp_path).exit_code == 0
    assert call("diff", vector("01-empty-null"), "--kubelet-dir", tmp_path).exit_code == 1


def test_a_dash_is_standard_input(full: Path) -> None:
    data = full.read_bytes()
    assert call("show", "-", input=data).output == call("show", full).output
    assert call("verify", "-", input=data).output.startswith("-: good: 2 entries of 2 pods")
    assert call("diff", full, "-", input=data).exit_code == 0
    assert call("diff", "-", full, input=data).exit_code == 0
    assert call("diff", "-", "-", input=data).exit_code == 2


@pytest.mark.parametrize("arguments", [["diff"], ["show", "a", "b"], ["diff", "a", "b", "c"], ["burn"]])
def test_a_wrong_call_is_exit_code_2(arguments: list[str]) -> None:
    assert call(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("file", "reason"),
    [("none", "No such file"), ("", "Is a directory; to read the checkpoint in it, use --kubelet-dir")],
)
def test_unreadable_file_is_an_error(tmp_path: Path, file: str, reason: str) -> None:
    result = call("show", f"{tmp_path}/{file}")
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(f"cannot read {tmp_path}/{file}: {reason}")


def examples() -> dict[str, str]:
    """The commands of the page that read a vector, with the output that the page shows."""
    page = (ROOT / "docs" / "checkpoint.md").read_text()
    examples = re.findall(r"^    \$ plugwright checkpoint (.* tests/vectors/.*)\n((?:    .*\n)+)", page, re.MULTILINE)
    return {command: textwrap.dedent(output) for command, output in examples}


def test_the_page_has_examples_of_every_command() -> None:
    assert {command.split()[0] for command in examples()} == {"show", "verify", "diff"}


@pytest.mark.parametrize("command", examples())
def test_the_examples_of_the_page_print_what_it_says(command: str) -> None:
    result = call(*(word.replace("tests/vectors", str(VECTORS)) for word in command.split()))
    assert result.output.replace(str(VECTORS), "tests/vectors") == examples()[command]


async def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"\x00\xff")
    done = await ended(python("-m", "plugwright", "checkpoint", "show", junk))
    text = f"plugwright: {junk}: checkpoint does not parse: byte 1 is not UTF-8\n"
    assert (done.code, done.out, done.err) == (1, "", text)
