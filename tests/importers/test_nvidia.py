"""A configuration of NVIDIA's plugin means the same to us; what does not is said, with its line."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plugwright.config import schema
from plugwright.errors import ConfigError

source = pytest.importorskip("plugwright.importers.source", reason="plugwright import is not part of this tree")
values = pytest.importorskip("plugwright.importers.source")
nvidia = pytest.importorskip("plugwright.importers.nvidia")

SLICED = """\
version: v1
sharing:
  timeSlicing:
    resources:
      - name: nvidia.com/gpu
        replicas: 4
"""


def given(text: str = "", *flags: str, env: Mapping[str, str] | None = None) -> Any:
    words = tuple(values.flag_word(number, word) for number, word in enumerate(flags, 1))
    variables = {name: values.flag_word(1, said) for name, said in (env or {}).items()}
    return source.Source(root=values.parse("config.yaml", text) if text else None, flags=words, environment=variables)


def translated(text: str = "", *flags: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What stands under `nvidia:` by resource; our own checks find nothing wrong with it."""
    imported = nvidia.translate(given(text, *flags, env=env))
    contents = [entry.content for entry in imported.entries]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "plugwright.yaml")
        file.write_text(json.dumps({"resources": contents}))
        schema.load(file)
    return {content["name"]: content["nvidia"] for content in contents}


def noted(text: str = "", *flags: str, env: Mapping[str, str] | None = None) -> list[str]:
    return [f"{note.line}: {note.text}" for note in nvidia.translate(given(text, *flags, env=env)).notes]


def test_nothing_said_is_every_gpu_by_an_environment_variable() -> None:
    assert translated("version: v1\n") == {"nvidia.com/gpu": {"strategy": "envvar"}}
    assert noted("version: v1\n") == []


def test_time_slicing_is_taken_over() -> None:
    share = {"by": "time-slicing", "replicas": 4}
    assert translated(SLICED) == {"nvidia.com/gpu": {"strategy": "envvar", "share": share}}


def test_names_and_refusals_of_shared_resources_are_as_they_were() -> None:
    text = SLICED.replace(
        "    resources:", "    renameByDefault: true\n    failRequestsGreaterThanOne: true\n    resources:"
    )
    (name, entry), *rest = translated(text).items()
    assert (name, entry["share"], rest) == (
        "nvidia.com/gpu.shared",
        {"by": "time-slicing", "replicas": 4, "most": 1},
        [],
    )


def test_a_name_without_its_prefix_gets_it() -> None:
    assert list(translated(SLICED.replace("nvidia.com/gpu", "gpu"))) == ["nvidia.com/gpu"]


MPS = "sharing:\n  mps:\n    resources: [{name: nvidia.com/gpu, replicas: 10}]\n"


def test_mps_refuses_more_than_one_unless_told() -> None:
    assert translated(MPS)["nvidia.com/gpu"]["share"] == {"by": "mps", "replicas": 10, "most": 1}
    allowed = MPS.replace("    resources", "    failRequestsGreaterThanOne: false\n    resources")
    assert translated(allowed)["nvidia.com/gpu"]["share"]["most"] == 10
    assert any("plugwright mps run" in note for note in noted(MPS))


def test_mps_beside_time_slicing_wins_and_that_is_said() -> None:
    both = f"{MPS}  timeSlicing:\n    resources: [{{name: nvidia.com/gpu, replicas: 2}}]\n"
    assert translated(both)["nvidia.com/gpu"]["share"]["by"] == "mps"
    assert any("`mps` beside it wins" in note for note in noted(both))


IGNORED = """\
resources:
  gpus:
    - {pattern: "*A100*", name: gpu-a100}
    - {pattern: "*", name: gpu}
sharing:
  timeSlicing:
    resources:
      - {name: nvidia.com/gpu, rename: gpu-small, devices: [0, 2], replicas: 4}
"""


def test_keys_that_the_peer_ignores_stay_ignored() -> None:
    assert list(translated(IGNORED)) == ["nvidia.com/gpu"]
    said = [note for note in noted(IGNORED) if "parsed and then ignored by NVIDIA's plugin" in note]
    assert [note.partition(":")[0] for note in said] == ["8", "8", "2"]


def test_ignored_keys_are_used_when_asked_for() -> None:
    made = translated(IGNORED, "--use-ignored-keys")
    assert {name: (entry.get("select"), entry.get("exclude")) for name, entry in made.items()} == {
        "nvidia.com/gpu-a100": ({"model": "*A100*"}, None),
        "nvidia.com/gpu-small": ({"index": ["0", "2"]}, {"model": ["*A100*"]}),
        "nvidia.com/gpu": (None, {"model": ["*A100*"], "index": ["0", "2"]}),
    }


NAMED = """\
version: v1
resources: {gpus: [{pattern: "*A100*", name: gpu-a100}]}
sharing: {timeSlicing: {resources: [{name: gpu-a100, replicas: 2}, {name: gpu, replicas: 4}]}}
"""


def test_a_resource_is_shared_under_the_name_it_is_given() -> None:
    made = translated(NAMED, "--use-ignored-keys")
    assert {name: entry["share"]["replicas"] for name, entry in made.items()} == {"nvidia.com/gpu-a100": 2}
    assert any("no device is called nvidia.com/gpu here" in note for note in noted(NAMED, "--use-ignored-keys"))


def test_devices_may_be_a_count() -> None:
    text = "sharing: {mps: {resources: [{name: gpu, rename: few, devices: 2, replicas: 3}]}}"
    assert translated(text, "--use-ignored-keys")["nvidia.com/few"]["select"] == {"index": ["0", "1"]}


MIXED = """\
flags: {migStrategy: mixed}
sharing:
  timeSlicing:
    resources:
      - {name: nvidia.com/mig-1g.10gb.me, replicas: 2}
      - {name: nvidia.com/mig-2g.20gb, replicas: 3}
"""


def test_mig_profiles_become_resources_those_named_and_those_found() -> None:
    made = translated(MIXED)
    assert {name: (entry["mig"], entry.get("select")) for name, entry in made.items()} == {
        "nvidia.com/gpu": ("mixed", None),
        "nvidia.com/mig-1g.10gb.me": ("mixed", {"profile": "1g.10gb+me"}),
        "nvidia.com/mig-2g.20gb": ("mixed", {"profile": "2g.20gb"}),
        "nvidia.com/mig-{profile}": ("mixed", None),
    }
    assert made["nvidia.com/mig-{profile}"]["exclude"] == {"profile": ["1g.10gb+me", "2g.20gb"]}


def test_a_name_that_no_device_has_is_left_out_and_said() -> None:
    text = SLICED.replace("nvidia.com/gpu", "nvidia.com/tpu")
    assert translated(text) == {"nvidia.com/gpu": {"strategy": "envvar"}}
    (said,) = noted(text)
    assert said.startswith("5: sharing.timeSlicing.resources[0]: no device is called nvidia.com/tpu here: left out")


EVERYTHING = """\
version: v1
flags:
  migStrategy: single
  failOnInitError: true
  nvidiaDriverRoot: /run/nvidia/driver
  gdrcopyEnabled: true
  gdsEnabled: true
  mofedEnabled: true
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, volume-mounts]
    deviceIDStrategy: index
    cdiAnnotationPrefix: example.com/
    containerDriverRoot: /host
    sharedDevicesAllocationPolicy: packed
  gfd: {oneshot: true}
imex: {channelIDs: [0], required: true}
"""


def test_every_setting_has_its_place() -> None:
    assert translated(EVERYTHING) == {
        "nvidia.com/gpu": {
            "mig": "single",
            "strategy": ["device-nodes", "envvar", "volume-mounts"],
            "ids": "index",
            "prefer": "packed",
            "gdrcopy": True,
            "gds": True,
            "mofed": True,
            "driver": {"root": "/host", "host": "/run/nvidia/driver", "dev": "/run/nvidia/driver"},
            "cdi": {"annotations": "example.com/"},
            "imex": {"channels": [0], "required": True},
        }
    }
    assert any("GPU feature discovery" in note for note in noted(EVERYTHING))


def test_a_flag_stands_above_a_variable_and_a_variable_above_the_file() -> None:
    text = "flags: {plugin: {deviceListStrategy: volume-mounts}}"
    variable = {"DEVICE_LIST_STRATEGY": "cdi-annotations"}
    assert translated(text)["nvidia.com/gpu"]["strategy"] == "volume-mounts"
    assert translated(text, env=variable)["nvidia.com/gpu"]["strategy"] == "cdi-annotations"
    flags = ("nvidia-device-plugin", "--device-list-strategy", "cdi-cri", "--gds-enabled", "--mig-strategy=single")
    made = translated(text, *flags, env=variable)["nvidia.com/gpu"]
    assert made == {"mig": "single", "strategy": "cdi-cri", "gds": True}


@pytest.mark.parametrize(
    ("variables", "health"),
    [
        ({"DP_DISABLE_HEALTHCHECKS": "all"}, {"checks": False}),
        ({"DP_DISABLE_HEALTHCHECKS": "xids", "DP_ENABLE_HEALTHCHECKS": "48"}, {"checks": False}),
        ({"DP_DISABLE_HEALTHCHECKS": "94, 48"}, {"xids": {"48": "ignore", "94": "ignore"}}),
        ({"DP_ENABLE_HEALTHCHECKS": "13,48"}, {"xids": {"13": "quiet"}}),
        ({"DP_ENABLE_HEALTHCHECKS": "all"}, None),
    ],
)
def test_health_variables_are_rules(variables: dict[str, str], health: object) -> None:
    assert translated(env=variables)["nvidia.com/gpu"].get("health") == health


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: v2", "config.yaml:1: version: NVIDIA's plugin knows version v1, not 'v2'"),
        ("flags: {migStrategy: some}", "takes none, single, mixed, not 'some'"),
        ("flags: {plugin: {deviceListStrategy: nodes}}", "takes envvar, volume-mounts, cdi-annotations, cdi-cri"),
        (SLICED.replace("4", "1"), "config.yaml:6: sharing.timeSlicing.resources[0].replicas: NVIDIA's plugin wants"),
        ("sharing: {mps: {resources: []}}", "wants at least one resource"),
        ("sharing: {mps: {resources: [{name: gpu}]}}", "has a name and replicas"),
        (f"flags: {{migStrategy: mixed}}\n{MPS}", "refuses MPS with the MIG strategy mixed"),
        ("imex: {channelIDs: [1]}", "takes [] or [0], not ['1']"),
        ("flags: {gdsEnabled: perhaps}", "true or false is needed here"),
    ],
)
def test_what_the_peer_refuses_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        translated(text)
    assert said in str(refused.value)


def test_a_key_in_the_wrong_place_is_said_where_the_peer_says_nothing() -> None:
    text = SLICED.replace("  timeSlicing:", "  renameByDefault: true\n  timeSlicing:")
    assert noted(text) == ["3: sharing: unknown key 'renameByDefault', left out"]


def test_what_belongs_elsewhere_is_said() -> None:
    said = noted("", "--kubelet-socket=/x", "--cdi-disable-hooks=all", "--verbose")
    assert [note.partition(": ")[2].split(":")[0] for note in said] == [
        "--kubelet-socket",
        "--cdi-disable-hooks",
        "unknown flag '--verbose', left out",
    ]


@pytest.mark.parametrize(
    ("text", "variables", "ours"),
    [
        (SLICED, {}, True),
        ("flags: {migStrategy: none}", {}, True),
        ("", {"NVIDIA_DRIVER_ROOT": "/"}, True),
        ("version: v1", {}, False),
        ("resources: []", {}, False),
        ("[1, 2]", {"PATH": "/bin"}, False),
    ],
)
def test_its_files_are_told_from_others(text: str, variables: dict[str, str], ours: bool) -> None:
    assert nvidia.recognises(given(text, env=variables)) is ours
