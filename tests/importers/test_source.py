"""Files, flags and variables in ConfigMaps and manifests."""

import pytest

from plugwright.errors import ConfigError
from plugwright.importers.source import ManifestContents, read_manifests
from plugwright.importers.values import parse_all

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


def contents_of(text: str) -> ManifestContents:
    return read_manifests(parse_all("file", text))


def test_plain_file_is_its_own_root() -> None:
    root = contents_of("devices: []\n").file("")
    assert root is not None
    assert [key for key, _ in root.members()] == ["devices"]


@pytest.mark.parametrize("indent", ["", "  "])
def test_file_in_a_config_map_keeps_its_lines(indent: str) -> None:
    text = CONFIG_MAP
    if indent:
        item = "".join(f"    {line}" for line in CONFIG_MAP.splitlines(keepends=True))
        text = f"apiVersion: v1\nkind: List\nitems:\n  -{item[3:]}"
    root = contents_of(text).file("")
    assert root is not None
    assert [value.line for _, value in root.members()] == [7 + (3 if indent else 0)]


def test_file_of_several_is_chosen_by_key() -> None:
    contents = contents_of(CONFIG_MAP + "  other.yaml: 'devices: []'\n")
    with pytest.raises(ConfigError, match=r"choose one with --key: config\.json, other\.yaml"):
        contents.file("")
    chosen = contents.file("other.yaml")
    assert chosen is not None
    assert [key for key, _ in chosen.members()] == ["devices"]


def test_missing_key_names_the_files() -> None:
    with pytest.raises(ConfigError, match=r"there is no file 'x', only: config\.json"):
        contents_of(CONFIG_MAP).file("x")


def test_manifest_has_flags_and_variables() -> None:
    contents = contents_of(DAEMON_SET)
    assert [word.raw.strip() for word in contents.flags] == ["peer", "--device", "name: fuse"]
    assert {name: value.raw for name, value in contents.environment.items()} == {"DOMAIN": "lab.io"}
    assert [value.line for _, value in contents.flags[2].embedded().members()] == [12]
    assert contents.file("") is None


def test_manifest_and_config_map_are_read_together() -> None:
    contents = contents_of(f"{CONFIG_MAP}---\n{DAEMON_SET}---\napiVersion: v1\nkind: ServiceAccount\n")
    assert contents.file("") is not None
    assert len(contents.flags) == 3


def test_second_plain_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^file:3: a second file after '---'"):
        contents_of("devices: []\n---\ndevices: []\n")
