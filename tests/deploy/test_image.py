"""The image's recipe: everything by its hash, for both architectures, and on a base without a shell."""

import importlib.util
import os
import re
import shutil
import subprocess
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
        if "[" in source:  # made by `make image` before: the pattern may match nothing
            assert re.sub(r"\[(.)\]", r"\1", source) in allowed
        else:
            assert (ROOT / source).exists()
            assert source in allowed


def test_the_limiter_is_where_the_daemon_looks_for_it() -> None:
    assert "build/vgp[u]/*.so.1 /native/vgpu/\n" in DOCKERFILE
    assert f"COPY --from=build /native/ {Path(NvidiaVgpu().builtin).parent}/\n" in DOCKERFILE


NATIVE = ("cdi-hook/plugwright-cdi-hook", "vgpu/libcuda.so.1", "vgpu/libnvidia-ml.so.1")


@pytest.mark.parametrize("missing", [None, *NATIVE])
@pytest.mark.parametrize("extras", ["", "metrics", "cluster metrics nvidia"])
def test_an_image_with_nvidia_and_no_native_parts_is_not_built(
    tmp_path: Path, extras: str, missing: str | None
) -> None:
    [command] = [line for line in re.findall(r"^RUN (.+)$", DOCKERFILE, re.MULTILINE) if "/native/" in line]
    for part in NATIVE:
        (tmp_path / part).parent.mkdir(exist_ok=True)
        if part != missing:
            (tmp_path / part).touch()
    done = subprocess.run(
        ["sh", "-c", command.replace("/native/", f"{tmp_path}/")],
        env={**os.environ, "EXTRAS": extras}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if missing and "nvidia" in extras:
        assert (done.returncode, done.stderr) == (1, f"build/{missing} is missing: run 'make cdi-hook vgpu' first\n")
    else:
        assert (done.returncode, done.stderr) == (0, "")


def test_the_release_builds_native_parts_before_its_images() -> None:
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert 0 < release.index("make cdi-hook vgpu") < release.index("docker/build-push-action")


def test_the_last_stage_runs_nothing() -> None:
    """So that a base without a shell will do."""
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert not re.search(r"^RUN", last, re.MULTILINE)
    assert 'ENTRYPOINT ["plugwright"]' in last


def test_the_build_script_is_shell() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    path = DEPLOY / "build-image.sh"
    result = subprocess.run([bash, "-n", path], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert path.stat().st_mode & 0o111
