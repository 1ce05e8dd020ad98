"""The image's recipe: everything by its hash, for both architectures, and on a base without a shell."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.deploy.rendered import ROOT

from plugwright.plugins.nvidia.config import NvidiaVgpu

DEPLOY = ROOT / "deploy"
LOCK: dict[str, Any] = tomllib.loads((ROOT / "uv.lock").read_text())
PACKAGES = {package["name"]: package for package in LOCK["package"]}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DEPLOY / "image" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needed() -> Iterator[str]:
    """Every package that an image has, with all extras but that for tests."""
    waiting = ["plugwright"]
    seen = set(waiting)
    while waiting:
        package = PACKAGES[waiting.pop()]
        optional = package.get("optional-dependencies", {})
        extras = [each for extra, group in optional.items() if extra != "testing" for each in group]
        for dependency in package.get("dependencies", []) + (extras if package["name"] == "plugwright" else []):
            if dependency["name"] not in seen and "emscripten" not in dependency.get("marker", "").partition("!=")[0]:
                seen.add(dependency["name"])
                waiting.append(dependency["name"])
                yield dependency["name"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["cp311", "cp313"])
def test_nothing_is_compiled(machine: str, python: str) -> None:
    for name in needed():
        files = [wheel["url"].rpartition("/")[2] for wheel in PACKAGES[name]["wheels"]]
        fits = re.compile(rf"-(py3-none-any|({python}-{python}|cp3\d+-abi3)-manylinux\S*{machine})\.whl$")
        assert any(fits.search(file) for file in files), f"{name} has no wheel for {python} on {machine}"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_uv_itself_comes_by_its_hash(machine: str) -> None:
    url, digest = script("fetch_uv").wheel_of(LOCK, machine)
    assert url.startswith("https://")
    assert url.endswith(f"{machine}.whl")
    assert re.fullmatch("[0-9a-f]{64}", digest)


def test_what_builds_the_wheel_comes_by_its_hash_too() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    pinned = (DEPLOY / "image" / "build-requirements.txt").read_text().replace("\\\n", " ").splitlines()
    lines = [line for line in pinned if not line.startswith("#")]
    assert all(re.match(r"\S+==\S+ .*--hash=sha256:", line) for line in lines)
    names = {line.partition("==")[0] for line in lines}
    assert {re.split(r"[<>=!~ ]", each)[0] for each in asked} <= names


def test_all_that_is_copied_is_there_and_not_ignored() -> None:
    allowed = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"]
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)]
    for source in [each.rstrip("/") for line in copied for each in line]:
        if "[" in source:  # made by `make cdi-hook vgpu` or `make arm64`: the pattern may match nothing
            assert re.sub(r"\[(.)\]", r"\1", source) in allowed
        else:
            assert (ROOT / source).exists()
            assert source in allowed


def test_the_limiter_is_where_the_daemon_looks_for_it() -> None:
    assert "native.py /parts /native\n" in DOCKERFILE
    assert f"COPY --from=build /native/ {Path(NvidiaVgpu().builtin).parent}/\n" in DOCKERFILE


NATIVE = ("cdi-hook/plugwright-cdi-hook", "vgpu/libcuda.so.1", "vgpu/libnvidia-ml.so.1")


ELF = {"x86_64": 62, "aarch64": 183, "riscv64": 243}
HERE = platform.machine()


def compiled(path: Path, machine: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + ELF[machine].to_bytes(2, "little") + machine.encode())


def select(directory: Path, extras: str) -> subprocess.CompletedProcess[str]:
    """The step of the Dockerfile, for files that are copied to `directory / "parts"`."""
    [command] = [line for line in re.findall(r"^RUN (.+)$", DOCKERFILE, re.MULTILINE) if "/native" in line]
    command = command.replace(" /parts /native", f" {directory / 'parts'} {directory / 'native'}")
    return subprocess.run(
        ["sh", "-c", command.replace("deploy/image/", f"{DEPLOY}/image/").replace("python3 ", f"{sys.executable} ")],
        env={**os.environ, "EXTRAS": extras}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.skipif(HERE not in ELF, reason="images are for amd64 and arm64")
@pytest.mark.parametrize("other", ["nothing", "text", "riscv64"])
@pytest.mark.parametrize("missing", [None, *NATIVE])
@pytest.mark.parametrize("extras", ["", "metrics", "cluster metrics nvidia"])
def test_an_image_with_nvidia_and_no_native_parts_for_its_machine_is_not_built(
    tmp_path: Path, extras: str, missing: str | None, other: str
) -> None:
    for part in NATIVE:
        path = tmp_path / "parts/machine" / part
        if part != missing or other == "riscv64":
            compiled(path, HERE if part != missing else other)
        elif other == "text":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("LICENSE\n")
    done = select(tmp_path, extras)
    if missing and "nvidia" in extras:
        assert done.returncode == 1
        assert done.stderr.startswith(f"build/{missing} for {HERE} is missing: run 'make cdi-hook vgpu'")
    else:
        assert (done.returncode, done.stderr) == (0, "")
        copied = [part for part in NATIVE if (tmp_path / "native" / part).exists()]
        assert copied == [part for part in NATIVE if part != missing]


@pytest.mark.skipif(HERE not in ELF, reason="images are for amd64 and arm64")
def test_an_image_has_the_native_parts_for_its_machine_wherever_they_were_compiled(tmp_path: Path) -> None:
    foreign = "x86_64" if HERE == "aarch64" else "aarch64"
    for place, machine in {"arm64": HERE, "machine": foreign}.items():
        for part in NATIVE:
            compiled(tmp_path / "parts" / place / part, machine)
    assert select(tmp_path, "nvidia").returncode == 0
    assert all((tmp_path / "native" / part).read_bytes().endswith(HERE.encode()) for part in NATIVE)


def test_the_release_builds_native_parts_before_its_images() -> None:
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert 0 < release.index("make cdi-hook vgpu") < release.index("docker/build-push-action")


def test_the_last_stage_runs_nothing() -> None:
    """So that a base without a shell will do."""
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert not re.search(r"^RUN", last, re.MULTILINE)
    assert 'ENTRYPOINT ["plugwright"]' in last


@pytest.mark.parametrize("name", ["build-image.sh", "dist-images.sh"])
def test_the_build_scripts_are_shell(name: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    path = DEPLOY / name
    result = subprocess.run([bash, "-n", path], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert path.stat().st_mode & 0o111


def without_tools(directory: Path, images: str) -> subprocess.CompletedProcess[str]:
    """`dist-images.sh` on a machine that has a shell and no more."""
    for program in ("bash", "cat", "dirname", "id", "mkdir", "realpath", "sed", "uname"):
        (directory / program).symlink_to(shutil.which(program) or "/bin/false")
    return subprocess.run(
        [str(directory / "bash"), str(DEPLOY / "dist-images.sh"), str(directory)],
        env={"PATH": str(directory), "IMAGES": images}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_machine_that_cannot_build_images_is_told_what_they_need(tmp_path: Path) -> None:
    done = without_tools(tmp_path, "")
    assert done.returncode == 0
    assert re.search(r"^dist has no images: they need .*buildah mmdebstrap dpkg cc \(", done.stderr)


def test_images_that_are_asked_for_and_cannot_be_built_are_an_error(tmp_path: Path) -> None:
    done = without_tools(tmp_path, "amd64")
    assert done.returncode != 0
    assert "build-image.sh" in done.stderr
    assert not list(tmp_path.glob("image-*"))
