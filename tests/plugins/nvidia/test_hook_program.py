"""plugwright-cdi-hook as a runtime calls it, on the files of a container whose image is not to be trusted.

With PLUGWRIGHT_CROSS=aarch64-linux-gnu (`make test-arm64`) it is compiled for that machine and run under qemu-user.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "native/cdi-hook"
UNSHARE = (["unshare", "--mount"], ["unshare", "--mount", "--user", "--map-root-user"])
LIBRARIES = "/opt/gpu/lib"
CROSS = os.environ.get("PLUGWRIGHT_CROSS", "")
COMPILER = f"{CROSS}-gcc" if CROSS else "cc"
EMULATOR = [f"qemu-{CROSS.partition('-')[0]}"] if CROSS else []


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command, in a mount namespace as a runtime has it."""
    if not shutil.which(COMPILER):
        pytest.skip("there is no C compiler")
    out = tmp_path_factory.mktemp("native")
    make = ["make", "-C", str(SOURCE), f"OUT={out}", f"CC={COMPILER}"]
    built = subprocess.run(make, capture_output=True, text=True, check=False)
    if "cannot find -lc" in built.stderr:
        pytest.skip("there is no static libc")
    assert built.returncode == 0, built.stderr
    for command in UNSHARE:
        trial = subprocess.run([*command, "mount", "-t", "tmpfs", "no", "/mnt"], check=False, capture_output=True)
        if trial.returncode == 0:
            return [*command, *EMULATOR, str(out / "plugwright-cdi-hook")]
    pytest.skip("mount namespaces cannot be made here")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Of a container with a library that its loader's cache does not know."""
    root = tmp_path / "bundle/rootfs"
    for name in ("etc", "proc", LIBRARIES.lstrip("/")):
        (root / name).mkdir(parents=True)
    source = tmp_path / "libcuda.c"
    source.write_text("int cuInit(void) { return 0; }\n")
    library = root / LIBRARIES.lstrip("/") / "libcuda.so.1"
    subprocess.run([COMPILER, "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
    decoy = {"path": "/", "text": 'a "quoted} [text\\'}
    config = {"process": {"root": decoy, "args": [decoy]}, "root": {"readonly": True, "path": "rootfs"}, "hooks": {}}
    (root.parent / "config.json").write_text(json.dumps(config))
    return root.parent


def call(hook: list[str], bundle: Path, *words: str) -> subprocess.CompletedProcess[str]:
    state = json.dumps({"ociVersion": "1.2.0", "annotations": {"bundle": "/"}, "bundle": str(bundle)}, indent=1)
    return subprocess.run([*hook, *words], input=state, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(bool(CROSS), reason="qemu-user cannot start a program by its descriptor, as ldconfig is")
def test_the_loaders_cache_knows_the_mounted_libraries_and_their_links(hook: list[str], bundle: Path) -> None:
    root = bundle / "rootfs"
    for words in (
        ("create-symlinks", "--link", f"libcuda.so.1::{LIBRARIES}/libcuda.so", "--link", "../card1::/dev/dri/a/b"),
        ("update-ldcache", "--folder", LIBRARIES),
        ("create-symlinks", "--link", f"libcuda.so.1::{LIBRARIES}/libcuda.so"),
    ):
        done = call(hook, bundle, *words)
        assert (done.returncode, done.stderr) == (0, "")
    assert (root / "dev/dri/a/b").readlink() == Path("../card1")
    listed = subprocess.run(
        ["/sbin/ldconfig", "-C", root / "etc/ld.so.cache", "-p"], capture_output=True, text=True, check=True
    )
    for name in ("libcuda.so", "libcuda.so.1"):
        assert f"=> {LIBRARIES}/{name}\n" in listed.stdout
    assert {path.name for path in (root / "etc").iterdir()} == {"ld.so.cache", "ld.so.conf.d"}
    assert (root / "etc/ld.so.conf.d/00-plugwright.conf").read_text() == f"{LIBRARIES}\n"


@pytest.mark.parametrize("way", ["/proc/{pid}/root{outside}", "../../../../../..{outside}", "{outside}"])
def test_nothing_outside_the_container_can_be_written(hook: list[str], bundle: Path, tmp_path: Path, way: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (bundle / "rootfs/etc").rmdir()
    (bundle / "rootfs/etc").symlink_to(way.format(pid=os.getpid(), outside=outside))
    with_proc = ["sh", "-c", 'mount -t proc proc "$0" 2>/dev/null; exec "$@"', str(bundle / "rootfs/proc")]
    call([*hook[:-1], *with_proc, hook[-1]], bundle, "update-ldcache", "--folder", LIBRARIES)
    call([*hook[:-1], *with_proc, hook[-1]], bundle, "create-symlinks", "--link", "passwd::/etc/shadow")
    assert list(outside.iterdir()) == []


def test_a_wrong_call_says_what_is_wrong(hook: list[str], bundle: Path) -> None:
    assert "usage: plugwright-cdi-hook create-symlinks" in call(hook, bundle).stderr
    assert "must have the path of a bundle" in call(hook, Path("relative"), "update-ldcache").stderr
    assert "TARGET::/PATH, got nothing" in call(hook, bundle, "create-symlinks", "--link", "nothing").stderr
    (bundle / "config.json").write_text('{"root": {"path": "/"}}')
    assert "must not be the host's" in call(hook, bundle, "update-ldcache", "--folder", LIBRARIES).stderr
