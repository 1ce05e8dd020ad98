"""Runs every check on a node and makes the DoctorReport.

A check is skipped if another one has found its cause: one fault is one finding. A check that hangs or fails is unknown,
never healthy.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial

import msgspec

from plugwright.doctor import (
    cdi_checks,
    daemon_checks,
    host_checks,
    kubelet_checks,
    kubelet_setting_checks,
    nvidia_checks,
    runtime_checks,
)
from plugwright.doctor.doctor_report import DoctorCheck, DoctorMetadata, DoctorReport, not_checked
from plugwright.doctor.examined_node import DoctorTarget, ExaminedNode
from plugwright.errors import NotVisible, PlugwrightError
from plugwright.system.blocking import call_within
from plugwright.text import described
from plugwright.version import __version__

__all__ = ["CHECKS", "Examination", "diagnose"]

logger = logging.getLogger(__name__)

_LIMIT = 30.0  # seconds for one check


class Examination(msgspec.Struct, frozen=True):
    """A check, and the checks whose findings explain its own, in which case it is skipped."""

    check: Callable[[ExaminedNode], DoctorCheck]
    after: Collection[str] = ()


_DAEMON, _SETTINGS = ("daemon",), ("kubelet-configuration",)
_SOCKET = ("kubelet-directory", "kubelet-socket")
CHECKS: Mapping[str, Examination] = {
    "kubelet-root": Examination(kubelet_checks.kubelet_root),
    "kubelet-directory": Examination(kubelet_checks.kubelet_directory, ("kubelet-root",)),
    "kubelet-socket": Examination(kubelet_checks.kubelet_socket, ("kubelet-directory",)),
    "plugin-sockets": Examination(kubelet_checks.plugin_sockets, ("kubelet-directory",)),
    "plugin-answers": Examination(kubelet_checks.plugin_answers, ("kubelet-directory",)),
    "lost-plugins": Examination(kubelet_checks.lost_plugins, ("kubelet-directory",)),
    "deprecation-file": Examination(kubelet_checks.deprecation_file, ("kubelet-directory",)),
    "plugins-registry": Examination(kubelet_checks.registry_sockets, ("kubelet-root",)),
    "pod-resources": Examination(kubelet_checks.pod_resources_socket, ("kubelet-root", *_SOCKET)),
    "kubelet-checkpoint": Examination(kubelet_checks.device_checkpoint, ("kubelet-directory",)),
    "kubelet-state": Examination(kubelet_setting_checks.manager_states),
    "kubelet-configuration": Examination(kubelet_setting_checks.kubelet_file),
    "kubelet-feature-gates": Examination(kubelet_setting_checks.feature_gates, _SETTINGS),
    "topology-policy": Examination(kubelet_setting_checks.topology_policy, _SETTINGS),
    "container-runtime": Examination(runtime_checks.container_runtime),
    "runtime-cdi": Examination(runtime_checks.runtime_cdi, ("container-runtime",)),
    "runtime-programs": Examination(runtime_checks.runtime_programs, ("container-runtime",)),
    "cdi-specs": Examination(cdi_checks.cdi_specs),
    "cdi-conflicts": Examination(cdi_checks.cdi_conflicts),
    "cdi-overrides": Examination(cdi_checks.cdi_overrides, ("cdi-conflicts",)),
    "cdi-paths": Examination(cdi_checks.cdi_paths),
    "nvidia-module": Examination(nvidia_checks.nvidia_module),
    "nvidia-gpus": Examination(nvidia_checks.nvidia_gpus, ("nvidia-module",)),
    "nvidia-fabric": Examination(nvidia_checks.nvidia_fabric, ("nvidia-module",)),
    "nvidia-versions": Examination(nvidia_checks.nvidia_versions, ("nvidia-module",)),
    "nvidia-device-nodes": Examination(nvidia_checks.nvidia_nodes, ("nvidia-module",)),
    "device-numbers": Examination(nvidia_checks.device_numbers, ("nvidia-module", "nvidia-device-nodes")),
    "device-access": Examination(nvidia_checks.device_access, ("nvidia-module", "nvidia-device-nodes")),
    "selinux": Examination(host_checks.selinux),
    "apparmor": Examination(host_checks.apparmor),
    "inotify": Examination(host_checks.inotify_instances),
    "open-files": Examination(host_checks.open_files),
    "processes": Examination(host_checks.process_count),
    "state-directory": Examination(host_checks.state_directory),
    "disk-space": Examination(host_checks.disk_space),
    "clock": Examination(host_checks.clock),
    "daemon": Examination(daemon_checks.daemon),
    "daemon-mounts": Examination(kubelet_checks.daemon_mounts, (*_DAEMON, "kubelet-directory")),
    "daemon-version": Examination(daemon_checks.daemon_version, _DAEMON),
    "configuration": Examination(daemon_checks.configuration, _DAEMON),
    "node-name": Examination(daemon_checks.node_name, _DAEMON),
    "owner": Examination(daemon_checks.owner, _DAEMON),
    "registration": Examination(
        daemon_checks.registration, (*_DAEMON, "daemon-mounts", "kubelet-root", *_SOCKET, "selinux")
    ),
    "rivals": Examination(daemon_checks.rivals, (*_DAEMON, "kubelet-checkpoint", "registration")),
    "cordons": Examination(daemon_checks.cordons, (*_DAEMON, "state-directory")),
    "holdings": Examination(
        daemon_checks.holdings, (*_DAEMON, "kubelet-root", *_SOCKET, "pod-resources", "kubelet-checkpoint")
    ),
    "expected-devices": Examination(daemon_checks.expected_devices, (*_DAEMON, "nvidia-module", "nvidia-gpus")),
    "held-devices": Examination(
        kubelet_setting_checks.held_devices, (*_DAEMON, "kubelet-checkpoint", "rivals", "expected-devices")
    ),
    "discovery": Examination(daemon_checks.discovery, _DAEMON),
    "calls": Examination(daemon_checks.calls, (*_DAEMON, "discovery", "holdings")),
    "devices": Examination(
        daemon_checks.devices, (*_DAEMON, "discovery", "cordons", "nvidia-module", "nvidia-gpus", "nvidia-device-nodes")
    ),
    "dra-driver": Examination(daemon_checks.dra_driver, (*_DAEMON, "kubelet-root")),
}


def diagnose(target: DoctorTarget) -> DoctorReport:
    """The result of all checks. Blocks, with a limit for each check."""
    view, checks, causes = ExaminedNode(target), list[DoctorCheck](), set[str]()
    for name, examination in CHECKS.items():
        first = next((cause for cause in examination.after if cause in causes), None)
        if first is not None:
            checks.append(not_checked(name, f"may follow from {first}: fix that first"))
            continue
        check = _examined(name, examination, view)
        checks.append(check)
        if check.state == "finding":
            causes.add(name)
    seen = {check.state for check in checks}
    return DoctorReport(
        metadata=DoctorMetadata(
            node_name=target.node_name,
            version=__version__,
            root=str(target.root),
            in_pod=target.in_pod,
            generated_at=datetime.now(UTC),
        ),
        result="findings" if "finding" in seen else "healthy" if "ok" in seen else "unknown",
        checks=tuple(checks),
    )


def _examined(name: str, examination: Examination, view: ExaminedNode) -> DoctorCheck:
    try:
        return call_within(f"check {name}", _LIMIT, partial(examination.check, view))
    except NotVisible as error:
        return not_checked(name, error)
    except (OSError, ValueError, PlugwrightError) as error:
        return not_checked(name, described(error))
    except Exception as error:
        logger.exception("check failed", extra={"check": name})
        return not_checked(name, described(error))
