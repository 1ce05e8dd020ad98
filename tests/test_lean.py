"""What runs on every node loads nothing that it does not need."""

import sys
from pathlib import Path

import pytest
from tests.cli.processes import Node, ended, python, running
from tests.observed_kubelet import ObservedKubelet

HEAVY = {
    "click",
    "yaml",
    "rich",
    "google",
    "starlette",
    "kubernetes",
    "lightkube",
    "prometheus_client",
    "wsgiref",
}
TELLING = """
import sys
from plugwright import Allocation, Device, Plugin, run

class Telling(Plugin):
    resource = "example.com/telling"

    async def discover(self):
        yield [Device("one")]

    async def allocate(self, devices):
        return Allocation(env={"MODULES": " ".join(sorted(sys.modules))})

run(Telling())
"""


async def loaded_by(code: str) -> set[str]:
    done = await ended(python("-c", f"{code}\nimport sys\nprint(*sys.modules)"))
    assert (done.code, done.err) == (0, "")
    return set(done.out.split())


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


async def test_a_plugin_that_serves_has_loaded_nothing_heavy(kubelet: ObservedKubelet) -> None:
    where = {"PLUGWRIGHT_KUBELET_DIR": str(kubelet.paths.root)}
    async with running(python("-c", TELLING), where) as plugin:
        await plugin.err.until("registered")
        telling = await kubelet.endpoint("example.com/telling")
        [answer] = await telling.client.allocate(["one"])
    modules = set(answer.env["MODULES"].split())
    assert "plugwright.sdk.run" in modules
    assert not packages(modules) & HEAVY
    assert not {
        module
        for module in modules
        if module.startswith(("plugwright.cli", "plugwright.plugins", "plugwright.apiserver"))
    }


DATACLASSES = """
import pkgutil, sys
from importlib import import_module
from pathlib import Path
import plugwright.cli.run_file, plugwright.plugins
from plugwright.config import schema

schema.load(Path(sys.argv[1]))
for module in pkgutil.walk_packages(plugwright.plugins.__path__, "plugwright.plugins."):
    import_module(module.name)
for name, module in sorted(sys.modules.items()):
    if name.startswith("plugwright"):
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == name and "__dataclass_fields__" in vars(value):
                print(f"{name}.{value.__name__}")
"""


async def test_no_module_that_a_daemon_loads_defines_a_dataclass(tmp_path: Path) -> None:
    """Python compiles its methods at every start, 0.5 ms for each; a Struct costs a hundredth of that."""
    file = tmp_path / "plugwright.yaml"
    file.write_text("resources: [{name: mock/gpu, mock: {count: 2}}]")
    done = await ended(python("-c", DATACLASSES, file))
    assert (done.code, done.err, done.out.split()) == (0, "", [])


async def test_importing_plugwright_loads_none_of_its_modules() -> None:
    modules = await loaded_by("import plugwright")
    assert {module for module in modules if module.startswith("plugwright")} == {"plugwright"}


async def test_a_device_alone_needs_no_server() -> None:
    modules = await loaded_by("from plugwright import Device\nDevice('one')")
    assert not packages(modules) & ({"asyncio", "grpclib", "google", "logging"} | HEAVY)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
async def test_the_daemon_does_without_ssl_and_archives(kubelet: ObservedKubelet) -> None:
    node = Node(kubelet.paths.root)
    node.configure(gpu={"count": 2})
    async with node.daemon() as daemon:
        gpu = await kubelet.endpoint("mock/gpu", 2)
        await gpu.client.allocate(list(gpu.devices))
        mapped = {Path(line.split()[-1]).name for line in Path(f"/proc/{daemon.pid}/maps").read_text().splitlines()}
    assert not {name for name in mapped if name.startswith(("libssl", "_ssl", "libcrypto", "liblzma", "libbz2"))}


async def test_a_pod_reaches_its_api_server_without_what_kubeconfigs_need(tmp_path: Path) -> None:
    modules = await loaded_by(
        "from pathlib import Path\nfrom plugwright.kube.api_client import ApiClient\n"
        f"ApiClient.find({{'KUBERNETES_SERVICE_HOST': 'kube'}}, Path({str(tmp_path)!r}))"
    )
    assert "plugwright.kube.connection" in modules
    assert not modules & {
        "yaml",
        *(f"plugwright.kube.{name}" for name in ("kubeconfig", "proxies", "credential_plugin")),
    }


async def test_a_node_without_gpus_does_not_pay_for_them() -> None:
    modules = await loaded_by("import plugwright.cli.run")
    assert not {module for module in modules if module.startswith("plugwright.plugins.nvidia")}
    assert not modules & {"pynvml", "_hashlib"}


async def test_gpus_are_watched_without_openssl() -> None:
    modules = await loaded_by("import plugwright.plugins.nvidia.family")
    assert "plugwright.plugins.nvidia.plugin" in modules
    assert not modules & {"pynvml", "_hashlib"}


async def test_plain_devices_are_served_without_openssl_and_what_checks_them(tmp_path: Path) -> None:
    file = tmp_path / "plugwright.yaml"
    file.write_text("resources: [{name: example.com/fuse, paths: [/dev/fuse]}]")
    modules = await loaded_by(
        f"from plugwright.config import schema\nschema.load(__import__('pathlib').Path({str(file)!r}))"
    )
    assert "plugwright.plugins.generic.plugin" in modules
    assert not modules & {"_hashlib", "plugwright.plugins.generic.checks", "plugwright.sdk.cdi"}


async def test_a_plain_call_of_run_loads_no_click(tmp_path: Path) -> None:
    """The file is missing, which ends the daemon when all is loaded that reads it."""
    program = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); "
    program += "from plugwright.__main__ import main; main()"
    done = await ended(python("-c", program, "run", "-c", tmp_path / "none.yaml", "--state-dir", tmp_path))
    assert (done.code, done.err) == (1, f"plugwright: cannot read {tmp_path}/none.yaml: No such file or directory\n")
    assert "plugwright.config.reload" in done.out
    assert "plugwright.apiserver" not in done.out
    assert not packages(set(done.out.split())) & {"click", "rich", "difflib", "argparse", "typing_extensions"}


@pytest.mark.parametrize("command", ["status", "devices", "cordon", "history"])
async def test_a_command_about_devices_loads_neither_scheduler_nor_allocator(command: str) -> None:
    program = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); "
    program += "from plugwright.__main__ import main; main()"
    modules = set((await ended(python("-c", program, command, "--help"))).out.split())
    assert f"plugwright.cli.{command}" in modules
    heavy = tuple(f"plugwright.{name}" for name in ("apiserver", "allocator", "cluster.scheduling", "explain.oracle"))
    assert not [module for module in modules if module.startswith(heavy)]


async def test_a_test_of_a_device_plugin_needs_no_extra_but_that_of_tests() -> None:
    modules = await loaded_by("import plugwright.testing.harness, plugwright.testing.conformance")
    assert "plugwright.apiserver.one_node" in modules
    assert not packages(modules) & {"starlette", "uvicorn", "trustme", "cryptography"}
