"""One name means one thing: no class, type alias or module shares its name. Small modules need a reason.

The exceptions are listed, each with its reason.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "plugwright"
MODULES = sorted(PACKAGE.rglob("*.py"))
Named = Iterable[tuple[str, str]]
IMPORT = re.compile(r"^ *from plugwright((?:\.\w+)*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
ALIAS = re.compile(r"^([A-Z]\w*) = (?:\w+\[|\w+ \| )", re.MULTILINE)
CLASS = re.compile(r"^ *class ", re.MULTILINE)  # other modules need no parser

CLASSES: Mapping[str, str] = {
    # the CDI specification's words, always written cdi.Device, cdi.DeviceNode and cdi.Mount
    "Device": "a device that the kubelet counts, and one of a CDI spec",
    "DeviceNode": "a node in an Allocate response, and one in the edits of a CDI spec",
    "Mount": "a mount in an Allocate response, and one in the edits of a CDI spec",
}
APIS: Mapping[str, str] = {
    # "API" alone could mean the choice between the kubelet's two, a client, the server, or the kubelet's endpoint
    "ApiClient": "a client of any Kubernetes API server",
    "ApiFaults": "faults of the API server of a driver under test",
    "EnduresSlowApiServer": "a rule about the API server",
    "OutlivesApiServer": "a rule about the API server",
    "StartsWithoutApiServer": "a rule about the API server",
    "UnpreparesWithoutApiServer": "a rule about the API server",
    "_ApiServer": "the server of the API server in memory",
}
STEMS: Mapping[str, str] = {
    "__init__": "every package has one",
    "__main__": "plugwright, and the allocator's questions offline",
    "allocation": "what a container gets: decided by the device manager, answered by each plugin",
    "cdi": "each plugin's CDI specs",
    "claims": "as a driver reads them, and as the emulated kubelet keeps them",
    "checkpoint": "the file's format, the device manager's use of it, and the command that reads it",
    "control": "the daemon's control socket, and the command line's requests to it",
    "daemon": "ours, and NVIDIA's MPS control daemon",
    "discovery": "of devices, and of the API's kinds: both are the upstream word",
    "driver": "the DRA driver of a resource, and the kernel's of NVIDIA GPUs: both are the upstream word",
    "errors": "the exceptions of the tree, and the API server's Status objects",
    "events": "what an emulated kubelet did, and the Event objects of a cluster",
    "family": "what a package of plugins provides to the configuration",
    "files": "writing a file atomically, and CDI's own files",
    "health": "each plugin's rules for when a device is unhealthy",
    "logs": "the format of a log line, and the flags that choose it",
    "metrics": "what the daemon counts, and what the emulated kubelet counts under the real one's names",
    "paths": "the kubelet's directories, and the devices that are named by their paths",
    "plugin": "what an author subclasses, and each ready-made plugin",
    "pod_resources": "the service on the wire, and the emulated kubelet's implementation",
    "pods": "as a kubelet sees them, as the API server stores them, as a test writes them",
    "processes": "child processes; the containers and the plugins under test that are such",
    "registration": "the service on the wire, and both sides' use of it",
    "schema": "the shape of the operator's file, of API objects and of CDI files",
    "settings": "of a daemon, and of an emulated kubelet",
    "sharing": "of GPUs in general, and by MPS",
    "text": "texts from outside made safe to show, and an importer's texts made ours",
    # an importer has the name of what it imports
    "rdma": "the device family, and the importer of the shared RDMA device plugin's file",
    # a command's module has the command's name, whatever it shows
    "devices": "the device manager's sets, and the command for every device of a cluster",
    "dra": "the kubelet's service for claims, and the command that shows slices and claims",
    "history": "of a node's devices, and the command that shows it",
    "log_level": "of the daemon, and the command that changes it",
    "mock": "the plugin, and the command for its devices",
    "node": "an emulated node, and the command for the resources of real ones",
    "nvidia": "the importer of NVIDIA's configuration, and the command for GPUs",
    "run": "run() for a plugin author, and the command for an operator",
    "status": "the daemon's status, and the command that prints it",
    "kubelet": "the emulated kubelet, and the command that runs one",
    # a command that is a program has the same parts as the other one
    "program": "what `join`, `kubelet` and `up` run",
}
SMALL = 80  # lines; a smaller module has two importers, or a reason
_ONE_OF_MANY = "one of several of its kind, one module each"
_FULL = "its importer is near the limit of 400 lines"
SMALL_MODULES: Mapping[str, str] = {
    "allocator.shared_counters": "the counters of one pool; its importer has the devices of all",
    "apiserver.scale": "a subresource that several kinds have; its importer is near the limit",
    "cli.lean_start": "loaded before anything else",
    "cluster.controllers.replica_sets": "a module for each controller",
    "plugins.nvidia.nvidia_parameters": "loaded by the first claim that has such parameters",
    "system.journal": "a kind of file, apart from what is recorded in one",
    "cluster.pod_commands": "which container and node, apart from the cluster that is wired together",
    "system.init_process": "runs before anything else of the daemon",
    "system.idle_calls": "one mechanism, for whichever service answers next",
    "sdk.report_pages": "loaded by the few daemons that have the pages",
    "sdk.holdings.allocations": "what no file tells yet; its importer is near the limit",
    "sdk.holdings.known_claims": "two sources of claims joined, apart from the decisions",
    "sdk.holdings.neighbours": "what other releases say, apart from what is decided by it",
    "sdk.holdings.offers": "the ledger's file, apart from its decisions and its readers",
    "sdk.holdings.published": "the value that others build on, apart from how it is read",
    "sdk.removed_devices": "one part of a resource, supervised on its own",
    "cluster.controllers.pod_gc": _ONE_OF_MANY,
    "cluster.scheduling.claim_explanation": "words for people; its importer has kube-scheduler's",
    "cluster.joined.differences": "pure, and tested alone",
    "cluster.joined.pod_limits": "pods' fields, not nodes",
    "cluster.joined.remote_sources": "what kubelets and pods ask, not how nodes join",
    "cluster.nodes.pod_config": _FULL,
    "cluster.standalone.pod_claims": _FULL,
    "cluster.up.daemonize": "of another package than its importer, which only prints",
    "config.effective_values": "loaded by `run --print-config` alone",
    "config.expect_entry": "the settings of one key; its importer has the file",
    "config.families": "the registry that a new family is written into",
    "config.node_plugins": "of another package than its importer, which only prints",
    "conformance.baseline": "of another package than its importer, which only prints",
    "dra.device_access": "the claims' view of devices",
    "dra.health": "the implementation of one service",
    "explain.claim_answers": "answers about another kind than its package's",
    "explain.quotas": "pure, and tested alone",
    "explain.refusals": "the kubelet's words; its importer has the cluster's state",
    "extended_resources.kubelet_dir": "reads the node's disk; its importer the API server",
    "kubelet.components": _FULL,
    "plugins.nvidia.stored": _FULL,
    "plugins.nvidia.switch_log": _FULL,
    "plugins.nvidia.vgpu_builtin": _ONE_OF_MANY,
    "sdk.environment": "variables, for programs without a command line",
    "sdk.socket_directory": "the kubelet's directory, apart from the resources that are served in it",
    "system.inotify_api": "the system calls, apart from their use",
    "system.systemd": "of another package than its importer",
    "web.access_guard": "security alone, apart from what is served",
    "web.claims_page": _ONE_OF_MANY,
    "web.waiting_page": _ONE_OF_MANY,
    "web.page_program": "of another package than its importer, which only prints",
    "testing.pods": "the package's names come from several modules",
}


def modules() -> Named:
    for path in MODULES:
        yield path.stem, str(path.relative_to(PACKAGE))


@cache
def classes() -> Named:
    return [
        (node.name, f"{path.relative_to(PACKAGE)}:{node.lineno}")
        for path in MODULES
        if CLASS.search(source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    ]


def used_twice(named: Named) -> dict[str, list[str]]:
    locations: dict[str, list[str]] = defaultdict(list)
    for name, location in named:
        locations[name].append(location)
    return {name: several for name, several in locations.items() if len(several) > 1}


def lines(names: Mapping[str, list[str]]) -> str:
    return "".join(f"\n  {name}: {', '.join(locations)}" for name, locations in sorted(names.items()))


def test_a_class_name_is_used_once() -> None:
    twice = {name: locations for name, locations in used_twice(classes()).items() if name not in CLASSES}
    assert not twice, f"used for several classes:{lines(twice)}"


def test_api_in_a_class_name_means_a_kubernetes_api_server() -> None:
    assert {name for name, _ in classes() if "Api" in name} == APIS.keys()


def test_a_type_alias_is_defined_once() -> None:
    twice = used_twice(
        (name, str(path.relative_to(PACKAGE)))
        for path in MODULES
        for name in ALIAS.findall(path.read_text())
        if len(name) > 1 and not name.isupper()
    )
    assert not twice, f"defined several times:{lines(twice)}"


def test_a_module_name_is_used_once() -> None:
    twice = {name: locations for name, locations in used_twice(modules()).items() if name not in STEMS}
    assert not twice, f"used for several modules:{lines(twice)}"


def importers() -> Mapping[str, set[str]]:
    """Which modules import a module, by the dotted names below the package."""
    names = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in MODULES}
    found: dict[str, set[str]] = {name: set() for name in names}
    for importer, path in names.items():
        for package, imported in IMPORT.findall(path.read_text()):
            prefix = f"{package.removeprefix('.')}." if package else ""
            for name in [package.removeprefix("."), *(prefix + word for word in re.findall(r"\w+", imported))]:
                found.get(name, set()).add(importer)
    return found


def test_a_small_module_has_two_importers_or_a_reason() -> None:
    sizes = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in MODULES}
    small = {
        name
        for name, users in importers().items()
        if len(users) == 1 and len(sizes[name].read_text().splitlines()) < SMALL and not name.endswith("__init__")
    }
    assert small <= SMALL_MODULES.keys(), f"merge into the importer: {sorted(small - SMALL_MODULES.keys())}"


def test_every_exception_is_still_one() -> None:
    assert not CLASSES.keys() - used_twice(classes())
    assert not STEMS.keys() - used_twice(modules())
