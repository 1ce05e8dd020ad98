"""Programs that know only the paths of a node: their view is the test's, and nothing of it is left on the host."""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.conformance.plugin import HOST_NODES
from tests.conformance.verifying import driver_options, small_driver

from plugwright.conformance import catalogue, namespace, program, runner
from plugwright.conformance.namespace import Mount
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus, Verdict
from plugwright.conformance.session import TimeLimits
from plugwright.conformance.verifier import VerifyOptions
from plugwright.errors import ConfigError
from plugwright.protocol.paths import KubeletPaths

DIRECTORY = Path(__file__).parent
PLUGIN = (sys.executable, str(DIRECTORY / "plugin.py"), "--root", "/var/lib/kubelet")
DRIVER = (sys.executable, str(DIRECTORY / "driver.py"), "--root", "/var/lib/kubelet")
LIMITS = TimeLimits(start=60, register=60)
HOST = [Path(name) for name in ("/var/lib/kubelet", "/var/run/cdi", "/etc/cdi", "/var/run/secrets")]
pytestmark = pytest.mark.skipif(namespace.enter() is None, reason="mount namespaces are not allowed here")


def on_host() -> dict[Path, list[str]]:
    return {path: sorted(entry.name for entry in path.iterdir()) for path in HOST if path.is_dir()}


def broken(verdicts: list[Verdict]) -> list[str]:
    return [f"{one.rule.id} {one.status}: {one.seen}" for one in verdicts if one.status is not RuleStatus.PASS]


async def output(script: str, root: Path, *binds: Mount) -> str:
    """What a program writes that runs in the namespace."""
    mounts = (Mount(root, namespace.KUBELET), Mount(root / "cdi", Path("/var/run/cdi")), *binds)
    (root / "cdi").mkdir(exist_ok=True)
    target = Target(("sh", "-c", script), binds=tuple(binds))
    around = program.Surroundings(mounts=mounts)
    started = await program.start(target, KubeletPaths(root, root), around)
    async with asyncio.timeout(60):
        await started.ends()
    await started.end()
    return started.output


async def test_a_driver_with_built_in_paths_is_reached_where_it_listens() -> None:
    before = on_host()
    rules = catalogue.select(["DRG", "PRP-01", "CDI-02", "DST-03"], dra=True)
    variables = {"CDI_ROOT": "/var/run/cdi"}
    verdicts = await runner.verify(Target(DRIVER, variables), rules, driver_options("1.36", LIMITS))
    assert broken(verdicts) == []
    assert on_host() == before


async def test_a_plugin_with_built_in_paths_keeps_the_rules() -> None:
    before = on_host()
    verdicts = await runner.verify(
        Target(PLUGIN), catalogue.select(["REG-0*", "ALO-01", "ANS-01"]), VerifyOptions(limits=LIMITS)
    )
    assert broken(verdicts) == []
    assert on_host() == before


async def test_a_driver_finds_the_api_server_as_a_pod_does() -> None:
    script = """
import os, ssl, urllib.request
directory = "/var/run/secrets/kubernetes.io/serviceaccount"
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
token, context = open(f"{directory}/token").read(), ssl.create_default_context(cafile=f"{directory}/ca.crt")
request = urllib.request.Request(f"https://{host}:{port}/api/v1/nodes/verified-node")
request.add_header("Authorization", f"Bearer {token}")
print("node", urllib.request.urlopen(request, context=context).status, open(f"{directory}/namespace").read())
"""
    target = Target((sys.executable, "-c", script))
    [verdict] = await runner.verify(target, catalogue.select(["DRG-01"], dra=True), driver_options("1.36", LIMITS))
    assert "its last line was 'node 200 default'" in verdict.seen


async def test_what_a_program_writes_to_the_nodes_directories_stays_private(root: Path) -> None:
    before = on_host()
    script = "echo {} > /var/run/cdi/spec.json; ls /var/run/cdi; echo x > /var/lib/kubelet/checkpoint"
    assert await output(script, root) == "spec.json\n"
    assert ((root / "cdi" / "spec.json").exists(), (root / "checkpoint").exists()) == (True, True)
    assert on_host() == before


@pytest.mark.parametrize("destination", ["/sys", "/sys/class", "/dev/no-such-directory", "/no-such/directory"])
async def test_a_bound_directory_is_seen_by_the_program(destination: str, root: Path, tmp_path: Path) -> None:
    (tmp_path / "card0").write_text("fake")
    bind = Mount(tmp_path, Path(destination))
    assert await output(f"cat {destination}/card0; test -e /dev/null && echo .", root, bind) == "fake.\n"
    assert not Path(destination, "card0").exists()


async def test_a_bound_file_is_seen_by_the_program(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "node"
    source.write_text("fake")
    assert await output("cat /dev/fake0", root, Mount(source, Path("/dev/fake0"))) == "fake"
    assert not Path("/dev/fake0").exists()


async def test_the_whole_of_dev_can_be_replaced(tmp_path: Path) -> None:
    for path in (*HOST_NODES.values(), "/dev/urandom"):
        (tmp_path / Path(path).name).touch()
    bind = Mount(tmp_path, Path("/dev"))
    target = Target((*PLUGIN[:-1], "{root}"), binds=(bind,))
    verdicts = await runner.verify(target, catalogue.select(["REG-01", "ANS-01"]), VerifyOptions(limits=LIMITS))
    assert broken(verdicts) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/tmp", "must be SRC:DST"),
        ("/tmp:relative", "must be SRC:DST"),
        ("/no/such/file:/dev", "no such file or directory"),
        ("/tmp:/", "below /"),
        ("/tmp:/sys/class/no-such-class", "must exist"),
    ],
)
def test_a_bind_that_cannot_work_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        namespace.parse_bind(text)


def test_paths_of_the_program_are_translated() -> None:
    mounts = [Mount(Path("/run/test"), Path("/var/lib/kubelet")), Mount(Path("/fake"), Path("/dev"))]
    assert namespace.translate(Path("/var/lib/kubelet/plugins/x/dra.sock"), mounts) == Path(
        "/run/test/plugins/x/dra.sock"
    )
    assert namespace.translate(Path("/etc/cdi"), mounts) == Path("/etc/cdi")


async def test_the_small_driver_is_private_too() -> None:
    before = on_host()
    verdicts = await runner.verify(
        small_driver(), catalogue.select(["PRP-01", "CDI"], dra=True), driver_options("1.36", LIMITS)
    )
    assert broken(verdicts) == []
    assert on_host() == before
