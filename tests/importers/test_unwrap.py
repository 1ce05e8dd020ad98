"""A peer's file is found in what stands around it in a cluster."""

import pytest

from plugwright.errors import ConfigError
from plugwright.importers import source
from plugwright.importers.source import Found

CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: peer}
data:
  config.json: |
    {
      "resourceList": []
    }
"""
DAEMON_SET = """\
apiVersion: apps/v1
kind: DaemonSet
spec:
  template:
    spec:
      containers:
        - image: peer
          command: [peer]
          args:
            - --device
            - |
              name: fuse
          env:
            - {name: DOMAIN, value: lab.io}
            - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
"""


def unwrap(text: str) -> Found:
    return source.unwrap(source.parse_all("file", text))


def test_a_plain_file_is_itself() -> None:
    root = unwrap("devices: []\n").file("")
    assert root is not None
    assert [key for key, _ in root.members()] == ["devices"]


@pytest.mark.parametrize("indent", ["", "  "])
def test_the_file_in_a_config_map_keeps_its_lines(indent: str) -> None:
    text = CONFIG_MAP
    if indent:
        item = "".join(f"    {line}" for line in CONFIG_MAP.splitlines(keepends=True))
        text = f"apiVersion: v1\nkind: List\nitems:\n  -{item[3:]}"
    root = unwrap(text).file("")
    assert root is not None
    assert [value.line for _, value in root.members()] == [7 + (3 if indent else 0)]


def test_one_of_several_files_is_named() -> None:
    found = unwrap(CONFIG_MAP + "  other.yaml: 'devices: []'\n")
    with pytest.raises(ConfigError, match=r"say which with --key: config\.json, other\.yaml"):
        found.file("")
    chosen = found.file("other.yaml")
    assert chosen is not None
    assert [key for key, _ in chosen.members()] == ["devices"]


def test_a_file_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match=r"there is no file 'x', only: config\.json"):
        unwrap(CONFIG_MAP).file("x")


def test_flags_and_variables_of_a_manifest_are_found() -> None:
    found = unwrap(DAEMON_SET)
    assert [word.raw.strip() for word in found.flags] == ["peer", "--device", "name: fuse"]
    assert {name: value.raw for name, value in found.environment.items()} == {"DOMAIN": "lab.io"}
    assert [value.line for _, value in found.flags[2].inner().members()] == [12]
    assert found.file("") is None


def test_a_manifest_and_its_config_map_belong_together() -> None:
    found = unwrap(f"{CONFIG_MAP}---\n{DAEMON_SET}---\napiVersion: v1\nkind: ServiceAccount\n")
    assert found.file("") is not None
    assert len(found.flags) == 3


def test_two_plain_files_in_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^file:3: a second file after '---'"):
        unwrap("devices: []\n---\ndevices: []\n")
