"""NVIDIA's plugin: its configuration is translated, and differences are noted with their line."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plugwright.config import schema
from plugwright.errors import ConfigError
from plugwright.importers import nvidia, values
from plugwright.importers.source import ForeignConfig

SLICED = """\
version: v1
sharing:
  timeSlicing:
    resources:
      - name: nvidia.com/gpu
        replicas: 4
"""


def config(text: str = "", *flags: str, env: Mapping[str, str] | None = None) -> ForeignConfig:
    words = tuple(values.flag_value(number, word) for number, word in enumerate(flags, 1))
    variables = {name: values.flag_value(1, word) for name, word in (env or {}).items()}
    return ForeignConfig(root=values.parse("config.yaml", text) if text else None, flags=words, environment=variables)


def translated(text: str = "", *flags: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The contents of `nvidia:` by resource, after our own schema has accepted them."""
    result = nvidia.translate(config(text, *flags, env=env))
    contents = [resource.content for resource in result.resources]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "plugwright.yaml")
        file.write_text(json.dumps({"resources": contents}))
        schema.load(file)
    return {str(content["name"]): content["nvidia"] for content in contents}


def noted(text: str = "", *flags: str, env: Mapping[str, str] | None = None) -> list[str]:
    return [f"{note.line}: {note.text}" for note in nvidia.translate(config(text, *flags, env=env)).notes]


def test_empty_configuration_is_every_gpu_by_an_environment_variable() -> None:
    assert translated("version: v1\n") == {"nvidia.com/gpu": {"strategy": "envvar"}}
    assert noted("version: v1\n") == []


def test_time_slicing_is_taken_over() -> None:
    share = {"by": "time-slicing", "replicas": 4}
    assert translated(SLICED) == {"nvidia.com/gpu": {"strategy": "envvar", "share": share}}


def test_names_and_limits_of_shared_resources_are_kept() -> None:
    text = SLICED.replace(
        "    resources:", "    renameByDefault: true\n    failRequestsGreaterThanOne: true\n    resources:"
    )
    (name, entry), *rest = translated(text).items()
    assert (name, entry["share"], rest) == (
        "nvidia.com/gpu.shared",
        {"by": "time-slicing", "replicas": 4, "most": 1},
        [],
    )


def test_name_without_the_prefix_gets_it() -> None:
    assert list(translated(SLICED.replace("nvidia.com/gpu", "gpu"))) == ["nvidia.com/gpu"]


MPS = "sharing:\n  mps:\n    resources: [{name: nvidia.com/gpu, replicas: 10}]\n"


def test_mps_refuses_more_than_one_by_default() -> None:
    assert translated(MPS)["nvidia.com/gpu"]["share"] == {
        "by": "mps",
        "replicas": 10,
        "most": 1,
        "mps": {"mode": "exclusive"},
    }
    allowed = MPS.replace("    resources", "    failRequestsGreaterThanOne: false\n    resources")
    assert translated(allowed)["nvidia.com/gpu"]["share"]["most"] == 10
    assert any("EXCLUSIVE_PROCESS while it runs, as NVIDIA's does" in note for note in noted(MPS))


def test_mps_overrides_time_slicing_with_a_note() -> None:
    both = f"{MPS}  timeSlicing:\n    resources: [{{name: nvidia.com/gpu, replicas: 2}}]\n"
    assert translated(both)["nvidia.com/gpu"]["share"]["by"] == "mps"
    assert any("NVIDIA's plugin uses `mps` if both are given" in note for note in noted(both))


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


def test_keys_that_nvidia_ignores_stay_ignored() -> None:
    assert list(translated(IGNORED)) == ["nvidia.com/gpu"]
    shown = [note for note in noted(IGNORED) if "parsed and then ignored by NVIDIA's plugin" in note]
    assert [note.partition(":")[0] for note in shown] == ["8", "8", "2"]


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


def test_resource_is_shared_under_its_new_name() -> None:
    made = translated(NAMED, "--use-ignored-keys")
    assert {name: entry["share"]["replicas"] for name, entry in made.items()} == {"nvidia.com/gpu-a100": 2}
    assert any("no resource is named nvidia.com/gpu;" in note for note in noted(NAMED, "--use-ignored-keys"))


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


def test_shared_resource_of_an_unknown_name_is_left_out_with_a_note() -> None:
    text = SLICED.replace("nvidia.com/gpu", "nvidia.com/tpu")
    assert translated(text) == {"nvidia.com/gpu": {"strategy": "envvar"}}
    (shown,) = noted(text)
    assert shown.startswith("5: sharing.timeSlicing.resources[0]: no resource is named nvidia.com/tpu; left out")


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


def test_every_setting_is_translated() -> None:
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


def test_flag_overrides_variable_and_variable_overrides_file() -> None:
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
    ("text", "problem"),
    [
        ("version: v2", "config.yaml:1: version: must be v1 for NVIDIA's plugin, got 'v2'"),
        ("flags: {migStrategy: some}", "must be one of none, single, mixed, got 'some'"),
        (
            "flags: {plugin: {deviceListStrategy: nodes}}",
            "must be one of envvar, volume-mounts, cdi-annotations, cdi-cri",
        ),
        (
            SLICED.replace("4", "1"),
            "config.yaml:6: sharing.timeSlicing.resources[0].replicas: must be at least 2, got 1",
        ),
        ("sharing: {mps: {resources: []}}", "must have at least one resource"),
        ("sharing: {mps: {resources: [{name: gpu}]}}", "must have a name and replicas"),
        (f"flags: {{migStrategy: mixed}}\n{MPS}", "must not be combined with migStrategy mixed"),
        ("imex: {channelIDs: [1]}", "must be [] or [0], got ['1']"),
        ("flags: {gdsEnabled: perhaps}", "must be true or false"),
    ],
)
def test_invalid_file_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        translated(text)
    assert problem in str(refused.value)


def test_key_in_the_wrong_mapping_is_noted() -> None:
    text = SLICED.replace("  timeSlicing:", "  renameByDefault: true\n  timeSlicing:")
    assert noted(text) == ["3: sharing: unknown key 'renameByDefault', left out"]


def test_settings_that_are_not_imported_are_noted() -> None:
    shown = noted("", "--kubelet-socket=/x", "--cdi-disable-hooks=all", "--verbose")
    assert [note.partition(": ")[2].split(":")[0] for note in shown] == [
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
def test_its_files_are_recognised(text: str, variables: dict[str, str], ours: bool) -> None:
    assert nvidia.recognises(config(text, env=variables)) is ours
