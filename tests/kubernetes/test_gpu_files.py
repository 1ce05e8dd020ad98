"""The driver's files in containers of an ordinary image, by a real containerd: found by its loader, without a variable.

The image has a loader and a cache of its own, which knows nothing of the driver, and the driver is a tree of libraries
with the names of NVIDIA's. There is no GPU and no NVIDIA runtime.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.kubernetes import images
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pod, Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

IMAGE = "plugwright.test/ordinary:1"
VERSION, NEXT = "580.159.04", "590.48.01"
NATIVE = Path(__file__).parents[2] / "native/cdi-hook"
LOAD = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int number = 1; number < count; number++) {
        void *library = dlopen(names[number], RTLD_NOW);
        int (*version)(void) = library ? (int (*)(void))dlsym(library, "version") : 0;
        printf("%s %d\n", names[number], version ? version() : -1);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> str:
    """With the loader, libc and ldconfig of this machine, and a cache made before any driver was there."""
    files = cluster.state / "ordinary"
    for path in ("/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"):
        target = files / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(path).resolve(), target)
    (files / "sbin").mkdir()
    ldconfig = next(filter(os.path.exists, ("/sbin/ldconfig.real", "/sbin/ldconfig")))
    shutil.copy(ldconfig, files / "sbin/ldconfig")
    (files / "etc").mkdir()
    (files / "etc/ld.so.conf").write_text("/lib/x86_64-linux-gnu\n")
    _compile(files / "sbin/load", LOAD)
    subprocess.run([files / "sbin/ldconfig", "-r", files], check=True)
    archive = cluster.state / "ordinary.tar"
    images.write_image(archive, IMAGE, files)
    cluster.load_image(archive)
    return IMAGE


@pytest.fixture
def driver(cluster: Cluster) -> Path:
    """The root of an installed driver, with its device nodes, which are all those of /dev/null."""
    root = cluster.state / f"driver-{len(list(cluster.state.glob('driver-*')))}"
    (root / "dev").mkdir(parents=True)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        os.mknod(root / "dev" / name, 0o666 | 0o020000, os.makedev(1, 3))
    install(root, VERSION)
    return root


def install(root: Path, version: str) -> None:
    """Replaces the driver that is there, as a package does."""
    directory = root / "usr/lib64"
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    major = version.partition(".")[0]
    for stem in ("libcuda", "libnvidia-ml"):
        soname = f"-Wl,-soname,{stem}.so.1"
        _compile(directory / f"{stem}.so.{version}", f"int version(void) {{ return {major}; }}", "-shared", soname)
        (directory / f"{stem}.so.1").symlink_to(f"{stem}.so.{version}")


def _compile(path: Path, source: str, *flags: str) -> None:
    subprocess.run(["cc", "-x", "c", "-", "-fPIC", *flags, "-o", path], input=source.encode(), check=True)


def hook_program(cluster: Cluster) -> str:
    program = cluster.state / "native/plugwright-cdi-hook"
    subprocess.run(["make", "-C", NATIVE, f"OUT={program.parent}"], check=True, capture_output=True)
    return str(program)


def serve(plugins: Plugins, resource: str, driver: Path, **settings: object) -> None:
    content = {"driver": {"root": str(driver), "dev": str(driver)}, **settings}
    plugins.script("gpu", resource, json.dumps(content))


def loaded(pod: Pod) -> str:
    return pod.exec("/sbin/load", "libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")


FOUND = "libcuda.so.1 580\nlibcuda.so 580\nlibnvidia-ml.so.1 580\n"


def test_an_ordinary_image_knows_no_driver(pods: Pods, image: str) -> None:
    assert loaded(pods.create("control", {}, image=image).runs()) == FOUND.replace("580", "-1")


def test_mounted_names_are_found_by_the_loader(
    plugins: Plugins, node: Node, pods: Pods, image: str, driver: Path
) -> None:
    serve(plugins, "nvidia.com/mounted", driver)
    node.shows("nvidia.com/mounted", capacity=1, allocatable=1)
    pod = pods.create("mounted", {"nvidia.com/mounted": 1}, image=image).runs()
    assert loaded(pod) == FOUND
    directory = pod.environment()["TRITON_LIBCUDA_PATH"]
    assert "libcuda.so.1" in pod.exec("ls", directory)
    assert pod.exec("stat", "-c", "%F %t:%T", "/dev/nvidia0").strip() == "character special file 1:3"


@pytest.mark.essential
def test_a_hook_puts_the_drivers_libraries_into_the_loaders_cache(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods, image: str, driver: Path
) -> None:
    cdi = {"hooks": hook_program(cluster), "vendor": "hooked.example.com"}
    serve(plugins, "nvidia.com/hooked", driver, strategy="cdi-cri", cdi=cdi)
    node.shows("nvidia.com/hooked", capacity=1, allocatable=1)
    pod = pods.create("hooked", {"nvidia.com/hooked": 1}, image=image).runs()
    assert loaded(pod) == FOUND
    listed = pod.exec("/sbin/ldconfig", "-p")
    assert "libcuda.so.1 (libc6,x86-64) => " in listed
    assert "libcuda.so (libc6,x86-64) => " in listed
    assert "TRITON_LIBCUDA_PATH" not in pod.environment()


@pytest.mark.parametrize(
    ("strategy", "name"), [("device-nodes", "updated"), ("cdi-cri", "updated-cdi")], ids=["device-nodes", "cdi-cri"]
)
def test_a_container_that_restarts_after_an_update_has_the_new_driver(
    plugins: Plugins, node: Node, pods: Pods, image: str, driver: Path, strategy: str, name: str
) -> None:
    resource = f"nvidia.com/{name}"
    serve(plugins, resource, driver, strategy=strategy, cdi={"hooks": "none", "vendor": f"{name}.example.com"})
    node.shows(resource, capacity=1, allocatable=1)
    end = "trap exit TERM; while ! test -e /tmp/end; do sleep 0.2; done"
    pod = pods.create(name, {resource: 1}, command=end, image=image).runs()
    [(first, _)] = pod.containers()
    install(driver, NEXT)
    pod.exec("touch", "/tmp/end")
    until(f"{name} is started again", lambda: pod.containers()[0][1] == 1 and pod.containers()[0][0] != first)
    assert loaded(pod.runs()) == FOUND.replace("580", "590")
    assert not [path for path in (driver / "usr/lib64").iterdir() if path.is_dir()]
