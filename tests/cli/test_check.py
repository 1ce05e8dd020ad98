"""`plugwright check`: every mistake in a configuration file, each with its line."""

from pathlib import Path

import pytest
from tests.cli.processes import ended, python

MISTAKES = """\
resourcse: []
resources:
  - name: mock/gpu
    mock: {count: ten, modle: A}
  - name: x.io/usb
    usb: {vendor: 0403, foo: 1}
  - name: x.io/two
    mock: {count: 1}
    paths: [/dev/null]
  - mock: {}
"""
CONFLICTS = """\
resources:
  - name: mock/gpu
    mock: {count: 1}
  - name: mock/gpu
    mock: {count: 1}
  - name: not a name
    mock: {count: 1}
cordons:
  - {resource: mock/other, id: mock-1, reason: broken}
"""


TOGETHER = """\
resources:
  - name: mock/gpu
    paths: [/dev/null]
    colour: red
    env: {GPU: "{nod}"}
  - name: mock/gpu
    mock: {count: ten}
"""


QUOTED = 'expected a string or a list or nothing, got the integer 0403: put it in quotes: "0403"'


async def check(path: Path, text: str) -> tuple[int, list[str], str]:
    path.write_text(text)
    done = await ended(python("-m", "plugwright", "check", path))
    return done.code, done.err.splitlines(), done.out


async def test_a_valid_file_passes(tmp_path: Path) -> None:
    path = tmp_path / "plugwright.yaml"
    assert await check(path, "resources:\n  - {name: mock/gpu, mock: {count: 1}}\n") == (
        0,
        [],
        f"{path}: 1 resource, valid\n",
    )


async def test_every_mistake_is_reported_in_one_run_with_its_line(tmp_path: Path) -> None:
    code, lines, _ = await check(tmp_path / "bad.yaml", MISTAKES)
    assert code == 1
    assert lines == [
        "plugwright: bad.yaml:1: unknown key 'resourcse': did you mean 'resources'?",
        'plugwright: bad.yaml:4: resources[0].mock.count: expected an integer, got the string "ten"',
        "plugwright: bad.yaml:4: resources[0].mock: unknown key 'modle': did you mean 'model'?",
        f"plugwright: bad.yaml:6: resources[1].usb.vendor: {QUOTED}",
        "plugwright: bad.yaml:6: resources[1].usb: unknown key 'foo'",
        "plugwright: bad.yaml:9: resources[2]: a resource must have one kind of device, got mock and paths",
        "plugwright: bad.yaml:10: resources[3]: the key 'name' is missing",
    ]


async def test_conflicts_are_reported_beside_wrong_types(tmp_path: Path) -> None:
    text = CONFLICTS.replace(
        "not a name\n    mock: {count: 1}", "not a name\n    mock: {count: 1}\n  - {name: a.io/b, mock: {cont: 1}}"
    )
    code, lines, _ = await check(tmp_path / "bad.yaml", text.replace("broken}", "broken, until: soon}"))
    assert code == 1
    assert [line.partition("bad.yaml:")[2].partition(":")[0] for line in lines] == ["4", "6", "8", "10"]


async def test_a_number_out_of_range_is_shown(tmp_path: Path) -> None:
    _, [line], _ = await check(tmp_path / "x.yaml", "resources:\n  - {name: a.io/b, mock: {count: 1}, expect: -1}\n")
    assert line.endswith("resources[0].expect: expected an integer >= 0, got -1")


async def test_every_conflict_is_reported_once_the_types_are_right(tmp_path: Path) -> None:
    code, lines, _ = await check(tmp_path / "bad.yaml", CONFLICTS)
    assert code == 1
    assert [line.partition("bad.yaml:")[2].partition(":")[0] for line in lines] == ["4", "6", "9"]


@pytest.mark.parametrize("text", ["", "[]", "resources: 7", "resources: [7]", "a: [", "resources:\n- name: x\n"])
async def test_a_file_of_another_shape_is_one_mistake(text: str, tmp_path: Path) -> None:
    code, lines, _ = await check(tmp_path / "bad.yaml", text)
    assert (code, len(lines)) == (1, 1)


async def test_the_file_of_another_plugin_leads_to_import(tmp_path: Path) -> None:
    path = tmp_path / "nvidia.yaml"
    code, [line], _ = await check(path, "version: v1\nflags: {migStrategy: none}\n")
    assert code == 1
    assert line == (
        f"plugwright: {path} is a configuration of another plugin; convert it: plugwright import --from nvidia {path}"
    )


async def test_a_kubernetes_object_is_recognised(tmp_path: Path) -> None:
    code, lines, _ = await check(tmp_path / "pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n")
    assert code == 1
    assert len(lines) == 1
    assert "pod.yaml is a Kubernetes object; a configuration of plugwright begins with `resources:`" in lines[0]


async def test_a_misspelt_template_is_answered_with_the_closest_one(tmp_path: Path) -> None:
    entry = "resources:\n  - {name: a.io/b, paths: [/dev/null], env: {X: '{nod}'}}\n"
    assert "has {nod}: did you mean {node}?" in (await check(tmp_path / "x.yaml", entry))[1][0]


async def test_conflicts_of_entries_with_other_mistakes_are_reported_too(tmp_path: Path) -> None:
    code, lines, _ = await check(tmp_path / "bad.yaml", TOGETHER)
    assert code == 1
    assert [line.partition(": ")[2] for line in lines] == [
        "bad.yaml:4: resources[0]: unknown key 'colour'",
        "bad.yaml:5: resources[0].env: '{nod}' has {nod}: did you mean {node}?",
        "bad.yaml:6: resources[1].name: mock/gpu is already a resource, in line 2",
        'bad.yaml:7: resources[1].mock.count: expected an integer, got the string "ten"',
    ]
