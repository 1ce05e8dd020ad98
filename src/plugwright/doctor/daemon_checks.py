"""The node's daemon according to its own report: registrations, devices, cordons, configuration, DRA drivers."""

import base64
import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from plugwright.doctor.doctor_report import DoctorCheck, found, healthy
from plugwright.doctor.examined_node import DAEMON, KUBELET, ExaminedNode
from plugwright.doctor.node_processes import processes
from plugwright.errors import NotVisible, PlugwrightError
from plugwright.model import some
from plugwright.sdk.cordons import CORDONS_FILE, cordons_problem
from plugwright.sdk.node_report import DeviceReport, ResourceReport
from plugwright.sdk.registration import other_sockets
from plugwright.sdk.status import PLANNED_CODES
from plugwright.system.sockets import is_listening
from plugwright.version import __version__

__all__ = [
    "calls",
    "configuration",
    "cordons",
    "daemon",
    "daemon_version",
    "devices",
    "discovery",
    "dra_driver",
    "expected_devices",
    "holdings",
    "node_name",
    "owner",
    "registration",
    "rivals",
]

_SERVED = ("registered", "idle")
_SHOWN = 4
_RECENT = timedelta(hours=1)
_PAUSE = 0.5  # seconds
_CERTIFICATE = "pki/kubelet-client-current.pem"
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_NODE = b"system:node:"
_GONE = "gone"  # not a fault, because devices may be unplugged, but it explains a missing device


def daemon(view: ExaminedNode) -> DoctorCheck:
    """Whether the daemon responds, and none of its threads hangs."""
    name, socket = "daemon", view.target.control_socket
    why = "no resource of plugwright is served on this node"
    start = "systemctl start plugwright; in a cluster: kubectl get pods -A -o wide -l app.kubernetes.io/name=plugwright"
    try:
        report = view.report.daemon
    except (FileNotFoundError, NotADirectoryError):
        if pid := next((pid for pid, program in view.programs.items() if program == DAEMON), None):
            text = f"plugwright (process {pid}) runs, and {socket} does not exist"
            fix = "restart the daemon; if its socket is elsewhere: plugwright doctor --control-socket PATH"
            return found(name, text, "no command can reach the daemon: its state is unknown", fix)
        return found(name, f"no daemon: {socket} does not exist", why, start)
    except ConnectionRefusedError:
        return found(name, f"no daemon: no process listens on {socket}", why, start)
    except PermissionError:
        return found(name, f"no permission to open {socket}", "its state is unknown", "run as root")
    except (OSError, PlugwrightError) as error:
        fix = "journalctl -u plugwright -n 50, or kubectl logs of its pod; then restart it"
        return found(name, f"the daemon does not answer: {error}", why, fix)
    if report.stalled:
        fix = "plugwright log-level debug --for 10m; correct the plugin's code that blocks, or restart the daemon"
        return found(name, f"the event loop is blocked: {report.stalled}", why, fix)
    if report.hung:
        text = some([f"{call.name} in {call.line}" for call in report.hung], _SHOWN)
        fix = "dmesg | grep -i 'blocked for more'; repair the driver or disk behind it, then restart the daemon"
        return found(name, f"calls that hang: {text}", "devices behind them are Unhealthy", fix)
    return healthy(name, f"plugwright {report.version} serves {len(view.report.resources)} resources")


def daemon_version(view: ExaminedNode) -> DoctorCheck:
    name, version = "daemon-version", view.report.daemon.version
    if version == __version__:
        return healthy(name, version)
    why = "an update is not in force, or this program is another installation: its words may not fit the daemon"
    fix = "systemctl restart plugwright, or run doctor in the daemon's pod: kubectl exec POD -- plugwright doctor"
    return found(name, f"the daemon is {version}, this program {__version__}", why, fix)


def configuration(view: ExaminedNode) -> DoctorCheck:
    name, config = "configuration", view.report.daemon.config
    if config is None:
        return healthy(name, "the plugin runs without a configuration file")
    fix = f"plugwright check {config.path}"
    if config.refused is not None:
        why = "an earlier version is served" + (", kept from before the last start" if config.restored else "")
        return found(name, f"{config.path} is refused: {config.refused.error}", why, fix)
    if config.restored:
        why = "changes of the file have no effect"
        return found(
            name, f"{config.path} could not be used at the start: the daemon serves its last valid version", why, fix
        )
    if config.refused_resources:
        text = "; ".join(f"{resource}: {reason}" for resource, reason in sorted(config.refused_resources.items()))
        return found(name, f"resources are not served: {text}", "pods that request them stay Pending", fix)
    return healthy(name, f"{config.path} is in force")


def cordons(view: ExaminedNode) -> DoctorCheck:
    name, report, file = "cordons", view.report, view.node_dir / CORDONS_FILE
    fix = f"repair {file}, or mv {file} {file}.damaged and cordon again"
    if report.cordons_unreadable:
        why = "every device is Unhealthy, because any of them may be cordoned"
        return found(name, f"cordons cannot be read: {report.cordons_unreadable}", why, fix)
    if problem := cordons_problem(view.path(file)):
        why = "no cordon can be added or removed, and every device is Unhealthy after the daemon's next start"
        return found(name, f"the cordons in {file} cannot be read: {problem}", why, fix)
    cordoned = [cordon for cordon in report.cordons if cordon.served]
    names = some([f"{cordon.resource} {cordon.id} ({cordon.reason})" for cordon in cordoned], _SHOWN)
    return healthy(name, f"{len(cordoned)} cordons: {names}" if cordoned else "no device is cordoned")


def node_name(view: ExaminedNode) -> DoctorCheck:
    """Whether the daemon publishes its devices under the name of the kubelet's Node."""
    name, own = "node-name", view.report.metadata.node_name
    if not own:
        return healthy(name, "the daemon needs none: it publishes no devices in the API server")
    view.need_node()
    actual = _kubelets_node(view)
    if own != actual:
        return found(
            name,
            f"the daemon runs for the node {own}, and the kubelet's Node is {actual}",
            "its ResourceSlices offer these devices on another node: pods with claims are never prepared here",
            f"plugwright run --node-name {actual}; in a pod: NODE_NAME from fieldRef spec.nodeName",
        )
    return healthy(name, own)


def _kubelets_node(view: ExaminedNode) -> str:
    """The name in the certificate with which the kubelet identifies itself to the API server, or in its flags."""
    certificate = view.kubelet.root / _CERTIFICATE
    if (text := view.read_if_there(certificate)) is None:
        names = [each.flag("hostname-override") for each in processes(view, KUBELET)]
        if len(names) != 1 or not names[0]:  # those of other nodes are visible too, if nodes are containers
            raise NotVisible(f"neither {certificate} nor --hostname-override of one kubelet is visible")
        return names[0]
    block = re.search(f"{_BEGIN}(.+?){_END}", text, re.DOTALL)
    content = base64.b64decode(block[1]) if block else b""
    _, prefix, rest = content.partition(_NODE)
    before = content[: len(content) - len(rest) - len(prefix)]
    if not prefix or not before:
        raise NotVisible(f"{certificate} has no certificate of a node")
    return rest[: before[-1] - len(_NODE)].decode()  # the byte before a name in DER is its length


def discovery(view: ExaminedNode) -> DoctorCheck:
    """Plugins whose latest list of devices is missing or rejected: the previous one is still served."""
    name, problems = "discovery", []
    for resource in view.report.resources:
        if resource.owner or resource.state == "idle":
            continue
        if resource.discovery and resource.devices:
            problems.append(resource.discovery)
        if resource.refused:
            problems.append(resource.refused)
        if resource.fault:
            problems.append(f"{resource.name} was restarted: {resource.fault}")
        problems += [
            f"{count} threads of {resource.name} hang in {method}()" for method, count in resource.stuck.items()
        ]
    if problems:
        return found(
            name,
            some(problems, _SHOWN),
            "the listed devices are those of an earlier list: new ones are missing, and lost ones may still be offered",
            "plugwright log-level debug --for 10m; kubectl logs of the daemon's pod, or journalctl -u plugwright -n 50",
        )
    return healthy(name, "the latest list of every plugin is in force")


def calls(view: ExaminedNode) -> DoctorCheck:
    """Calls of the kubelet that failed within the last hour, without a later success of the same method."""
    name, now = "calls", datetime.now(UTC)
    failures = [
        f"{resource.name}: {method} at {failure.time:%H:%M:%S} UTC: {failure.reason}"
        for resource in view.report.resources
        for method, failure in sorted(resource.failures.items())
        if now - failure.time.astimezone(UTC) < _RECENT
    ]
    if failures:
        return found(
            name,
            some(failures, _SHOWN),
            "the kubelet refused the pod with UnexpectedAdmissionError, or its container did not start",
            "kubectl logs of the daemon's pod, or journalctl -u plugwright -n 50: repair the plugin, then create the "
            "pod again",
        )
    return healthy(name, "no call of the kubelet failed without a later success")


def owner(view: ExaminedNode) -> DoctorCheck:
    name = "owner"
    owned = [f"{resource.name} is {resource.owner}" for resource in view.report.resources if resource.owner]
    if owned:
        return found(
            name,
            some(owned, _SHOWN),
            "this daemon waits: two daemons that list one resource replace each other's devices",
            "uninstall one of the releases, or let them select different nodes: helm list -A",
        )
    return healthy(name, "this daemon owns its resources")


def rivals(view: ExaminedNode) -> DoctorCheck:
    """Rivals reported by the daemon, or shown by a list in the kubelet's checkpoint that is not the daemon's (4.31)."""
    name, seen = "rivals", []
    registered = (view.checkpoint.registered or {}) if view.checkpoint is not None else {}
    for resource in view.report.resources:
        foreign = set(registered.get(resource.name) or ()) - {device.id for device in resource.devices}
        if resource.rival:
            seen.append(f"{resource.name}: {resource.rival}")
        elif foreign and resource.devices and not resource.owner:
            seen.append(f"{resource.name}: the kubelet has devices that are not listed here: {some(sorted(foreign))}")
        elif others := _other_daemons(view, resource):
            seen.append(f"{resource.name}: another daemon of plugwright listens on {some(others)}")
    if seen:
        return found(
            name,
            some(seen, _SHOWN),
            "another plugin serves the same resource: each list replaces the other's, and pods get devices twice",
            f"ls {view.kubelet.device_plugins}; kubectl get ds -A | grep -i device-plugin, and remove the other one",
        )
    return healthy(name, "no other plugin serves these resources")


def _other_daemons(view: ExaminedNode, resource: ResourceReport) -> list[str]:
    """Sockets of other daemons for this resource that stay; those of a rolling update end with the older pod."""
    if not resource.endpoint or resource.owner or resource.serve == "dra":
        return []
    directory, wait = view.path(view.kubelet.device_plugins), view.target.rollout_limit
    others = other_sockets(directory, resource.name, resource.endpoint)
    while others and wait > 0:
        time.sleep(_PAUSE)
        wait -= _PAUSE
        others = [name for name in others if is_listening(directory / name)]
    return others


def registration(view: ExaminedNode) -> DoctorCheck:
    name, problems = "registration", []
    resources = [resource for resource in view.report.resources if not resource.owner and resource.serve != "dra"]
    for resource in resources:
        if resource.state not in _SERVED:
            problems.append(f"{resource.name} is {resource.state}: {resource.reason or resource.discovery}")
        elif resource.state != "idle" and not resource.streams:
            problems.append(f"{resource.name} is registered, and the kubelet does not watch it")
    if problems:
        why = "the kubelet does not have these devices: allocatable is 0 and pods stay Pending"
        return found(
            name, some(problems, _SHOWN), why, "journalctl -u kubelet | grep -i 'device plugin'; plugwright status"
        )
    idle = [resource.name for resource in resources if resource.state == "idle"]
    text = f"{len(resources) - len(idle)} resources are registered and watched"
    return healthy(name, f"{text}; idle: {some(idle)}" if idle else text)


def expected_devices(view: ExaminedNode) -> DoctorCheck:
    name = "expected-devices"
    short = [f"{resource.name}: {resource.shortfall}" for resource in view.report.resources if resource.shortfall]
    if short:
        why = "the node offers other devices than it should: pods stay Pending or do not fit"
        fix = "dmesg | grep -i -e xid -e 'fallen off'; lspci -nn; correct `expect` if the hardware was changed"
        return found(name, some(short, _SHOWN), why, fix)
    return healthy(name, "no resource has other devices than expected")


def devices(view: ExaminedNode) -> DoctorCheck:
    """Devices that have failed or vanished, except those that are held, cordoned or intentionally left out."""
    name, report = "devices", view.report
    is_checked = view.exists(view.kubelet.root / "pods")  # whether `held-devices` finds those that are gone and held
    problems = [text for resource in report.resources for text in _problems(resource, is_checked)]
    if problems:
        why = "pods cannot get these devices"
        return found(
            name, some(problems, _SHOWN), why, "plugwright status; plugwright docs health  # explains each code"
        )
    listed = [device for resource in report.resources for device in resource.devices]
    others = Counter("cordoned" if device.cordoned else device.code for device in listed if device.health != "Healthy")
    usable = f"{len(listed) - others.total()} of {len(listed)} devices are Healthy"
    return healthy(name, "; ".join([usable, *(f"{count} {code}" for code, count in sorted(others.items()))]))


def _problems(resource: ResourceReport, is_checked: bool) -> Iterator[str]:
    """One text for each reason of a resource."""
    if resource.state == "idle" or resource.owner or resource.shortfall:
        return
    if not resource.devices and (resource.empty or resource.discovery):
        yield f"{resource.name} has no device: {resource.empty or resource.discovery}"
    reasons: dict[tuple[str, str], list[str]] = {}
    for device in resource.devices:
        is_reported = is_checked and device.code == _GONE and _is_held(device)
        if _is_broken(device) and not is_reported:
            reasons.setdefault((device.code, device.reason), []).append(device.id)
    for (code, reason), ids in reasons.items():
        yield f"{resource.name}: {some(ids, _SHOWN)} Unhealthy, {code}: {reason.removeprefix(f'{code}: ')}"
    if resource.devices and all(device.cordoned for device in resource.devices):
        yield f"{resource.name}: all {len(resource.devices)} devices are cordoned: {resource.devices[0].cordoned}"


def _is_held(device: DeviceReport) -> bool:
    return any(holder.api == "device-plugin" for holder in device.holders)


def _is_broken(device: DeviceReport) -> bool:
    is_planned = device.code in PLANNED_CODES and device.code != _GONE
    return device.health != "Healthy" and not is_planned and not device.cordoned


def dra_driver(view: ExaminedNode) -> DoctorCheck:
    name = "dra-driver"
    drivers = [resource.driver for resource in view.report.resources if resource.driver is not None]
    waiting = [
        f"{driver.name} is {driver.state}: {driver.reason or driver.problem}" for driver in drivers if not driver.ready
    ]
    if waiting:
        return found(
            name,
            some(waiting, _SHOWN),
            "pods with claims for these devices stay in ContainerCreating, or find no devices",
            "plugwright dra slices; kubectl auth can-i list resourceclaims --as system:serviceaccount:NAMESPACE:NAME",
        )
    return healthy(name, f"{len(drivers)} drivers are ready" if drivers else "no resource is served by claims")


def holdings(view: ExaminedNode) -> DoctorCheck:
    """Whether the holders of all devices are known."""
    name, unknown = "holdings", view.report.holdings.unknown
    waiting = [f"{resource.name}: {resource.waiting}" for resource in view.report.resources if resource.waiting]
    if unknown or waiting:
        text = some([*(f"{source.source}: {source.reason}" for source in unknown), *waiting], _SHOWN)
        why = "devices whose holder is unknown are kept back, so that none is given out twice"
        return found(name, text, why, "repair the named source, then plugwright status -o json | jq .holdings")
    return healthy(name, "the holders of all devices are known")
