"""Generates the parts of the chart that follow from the code: values.schema.json and families.json.

The schema is that of the operator's file as `plugwright run` reads it, and of the chart's own values. families.json
lists the device families with the directories that they need in the daemon's pod.

    python deploy/helm/generate.py                    # writes both files
    python deploy/helm/generate.py --check            # fails if a file is stale or values.yaml is invalid
    python deploy/helm/generate.py --check -f FILE    # the same, with FILE laid over values.yaml
"""

import inspect
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from plugwright.config import families, manifests
from plugwright.config import schema as operators_file

__all__ = ["Values", "family_table", "schema"]

_CHART = Path(__file__).parent / "plugwright"
_DIALECT = "http://json-schema.org/draft-07/schema#"  # what every Helm 3 reads

ConfigFile: Any = operators_file.file_type()
Free = dict[str, Any]  # as Kubernetes has it; the API server checks it
Texts = dict[str, str]
Directory = Annotated[str, msgspec.Meta(pattern=r"^/[^:]*[^:/]$")]
OptionalDirectory = Annotated[str, msgspec.Meta(pattern=r"^(/[^:]*[^:/])?$")]
ConfigName = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$")]


class _Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """No defaults below: those are in values.yaml, over which Helm lays the user's."""


class Image(_Strict):
    repository: Annotated[str, msgspec.Meta(min_length=1)]
    tag: str
    digest: Annotated[str, msgspec.Meta(pattern="^(sha256:[0-9a-f]{64})?$")]
    pull_policy: Literal["Always", "IfNotPresent", "Never"]


class MockMode(_Strict):
    enabled: bool
    resource: str
    count: Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class OwnPlugin(_Strict):
    target: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*:[A-Za-z0-9_]+)?$")]
    resources: list[str]
    serve: Literal["device-plugin", "dra", "both"]


class Dra(_Strict):
    device_classes: bool
    extended_resource_name: bool
    admission_policies: bool


class NamedConfig(_Strict):
    config: ConfigFile
    node_selector: Texts = {}
    affinity: Free = {}
    tolerations: list[Free] = []


class Kubelet(_Strict):
    dir: Directory
    device_plugins_dir: Directory


class Log(_Strict):
    format: Literal["human", "json"]
    level: Literal["debug", "info", "warning", "error"]


class Probes(_Strict):
    enabled: bool
    period: Annotated[int, msgspec.Meta(ge=1)]
    watchdog: Annotated[int, msgspec.Meta(ge=0)]


class ApiServer(_Strict):
    to: list[Free]
    ports: Annotated[list[Annotated[int, msgspec.Meta(ge=1, le=65535)]], msgspec.Meta(min_length=1)]


class NetworkPolicy(_Strict):
    enabled: bool
    from_: list[Free] = msgspec.field(name="from")
    api_server: ApiServer
    egress: list[Free]


class Monitor(_Strict):
    enabled: bool
    interval: str
    labels: Texts
    relabelings: list[Free]
    tls_config: Free


class PrometheusRule(_Strict):
    enabled: bool
    labels: Texts
    runbooks: str


class Dashboard(_Strict):
    enabled: bool
    labels: Texts


class Metrics(_Strict):
    enabled: bool
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    tls_secret: str
    token_secret: str
    node_report: bool
    pod_monitor: Monitor
    service_monitor: Monitor
    prometheus_rule: PrometheusRule
    dashboard: Dashboard


class Events(_Strict):
    enabled: bool
    admission_policies: bool
    resources: Free


class Security(_Strict):
    privileged: bool
    add_capabilities: list[str]
    se_linux_type: str
    seccomp_profile: Annotated[str, msgspec.Meta(pattern="^(RuntimeDefault|Unconfined|localhost/.+)$")]
    host_pid: bool = msgspec.field(name="hostPID")


class HostPath(_Strict):
    path: Directory
    mount_path: OptionalDirectory = ""
    read_only: bool = False
    mount_propagation: Literal["None", "HostToContainer", "Bidirectional"] = "None"


class Mps(_Strict):
    enabled: bool
    root: Directory
    shm: OptionalDirectory
    runtime_class_name: str
    interval: Annotated[float, msgspec.Meta(gt=0)]
    patience: Annotated[int, msgspec.Meta(ge=1)]
    host_pid: bool = msgspec.field(name="hostPID")
    privileged: bool | Literal["auto"]
    resources: Free


class Account(_Strict):
    create: bool
    name: str


class PriorityClass(_Strict):
    create: bool
    name: str
    value: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]  # more is for Kubernetes' own


class UpdateStrategy(_Strict):
    max_unavailable: int | Annotated[str, msgspec.Meta(pattern="^[0-9]+%$")]
    overlap: bool


class Test(_Strict):
    resources: list[str]


class Check(_Strict):
    enabled: bool
    node_selector: Texts
    tolerations: list[Free]


class Cleanup(_Strict):
    enabled: bool
    give_up_after_hours: Annotated[float, msgspec.Meta(gt=0)]
    host_network: bool
    node_selector: Texts
    tolerations: list[Free]


class Values(_Strict):
    config: ConfigFile
    plugin: OwnPlugin
    mock: MockMode
    dra: Dra
    configs: dict[ConfigName, NamedConfig]
    image_registry: Annotated[str, msgspec.Meta(pattern="^([^/ ].*[^/])?$")]
    image: Image
    tools_image: Image
    image_pull_secrets: list[Free]
    registration: Literal["direct", "watcher"]
    kubelet: Kubelet
    state_dir: OptionalDirectory
    node_dir: Directory
    run_dir: OptionalDirectory
    log: Log
    probes: Probes
    network_policy: NetworkPolicy
    metrics: Metrics
    events: Events
    security: Security
    host_paths: list[HostPath]
    extra_env: list[Free]
    extra_volumes: list[Free]
    extra_volume_mounts: list[Free]
    runtime_class_name: str
    mps: Mps
    service_account: Account
    resources: Free
    priority_class: PriorityClass
    node_selector: Texts
    affinity: Free
    tolerations: list[Free]
    update_strategy: UpdateStrategy
    pod_annotations: Texts
    pod_labels: Texts
    test: Test
    check: Check
    cleanup: Cleanup
    global_: Free = msgspec.field(name="global", default_factory=dict)  # Helm's own, where we are a part of a chart


def schema() -> str:
    (top,), parts = msgspec.json.schema_components([Values], ref_template="#/definitions/{name}")
    for part in parts.values():
        if "description" in part:  # a docstring: indented as in its module up to Python 3.12, not indented from 3.13 on
            part["description"] = inspect.cleandoc(part["description"])
    return json.dumps({"$schema": _DIALECT, **top, "definitions": parts}, indent=2, sort_keys=True) + "\n"


def family_table() -> str:
    """The families as _helpers.tpl reads them: each one's mounts, extras and placeholders, and the options of all."""
    loaded = {key: families.load(key) for key in sorted(families.BUILT_IN)}
    structs = [family.options for family in loaded.values() if family.options is not None]
    table = {
        "families": {
            key: {"extras": family.extras, "mounts": family.mounts, "placeholders": family.placeholders}
            for key, family in loaded.items()
        },
        "options": sorted({field.encode_name for options in structs for field in msgspec.structs.fields(options)}),
        "systemDirectories": manifests.SYSTEM,
        "takenDirectories": manifests.TAKEN,
    }
    return json.dumps(msgspec.to_builtins(table), indent=2, sort_keys=True) + "\n"


def main() -> None:
    arguments = sys.argv[1:]
    generated = {_CHART / "values.schema.json": schema(), _CHART / "families.json": family_table()}
    if not arguments:
        for target, text in generated.items():
            target.write_text(text)
        return
    for target, text in generated.items():
        if not target.exists() or target.read_text() != text:
            sys.exit(f"{target.name} is stale: run `make chart`")
    path = Path(arguments[2]) if arguments[1:2] == ["-f"] else _CHART / "values.yaml"
    try:
        msgspec.convert(_merged(_CHART / "values.yaml", path), Values)
    except msgspec.ValidationError as error:
        sys.exit(f"{path.name}: {error}")


def _merged(*paths: Path) -> object:
    """As Helm lays one file over another."""
    values: object = {}
    for path in paths:
        values = _over(values, yaml.safe_load(path.read_text()))
    return values


def _over(below: object, above: object) -> object:
    if isinstance(below, dict) and isinstance(above, dict):
        return {key: _over(below.get(key), above[key]) if key in above else below[key] for key in {**below, **above}}
    return above


if __name__ == "__main__":
    main()
