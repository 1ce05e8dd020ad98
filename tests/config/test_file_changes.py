"""The operator's file may become another one by a write, and by any link or directory of its path."""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.cli.test_reload import mount
from tests.system.scarcity import inotify_instances, no_more_file_descriptors

from plugwright.config.file_changes import SETTLE, file_changes, lookup_directories

LIMIT = 60  # seconds that any of these facts may take on a slow machine

Steps = list[Callable[[], object]]


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def recreate(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def replant(directory: Path, file: Path, text: str) -> None:
    shutil.rmtree(directory)
    put(file, text)


def point(link: Path, target: Path | str) -> None:
    """At once, as `ln -sfn` followed by `mv -T` does."""
    new = link.with_name(f"{link.name}.new")
    new.symlink_to(target)
    new.replace(link)


def plain(root: Path) -> tuple[Path, Steps]:
    file = put(root / "etc" / "p.yaml", "0")
    return file, [
        lambda: file.write_text("1"),
        lambda: put(root / "etc" / "other", "2").replace(file),
        lambda: recreate(file, "3"),
    ]


def current_release(root: Path) -> tuple[Path, Steps]:
    releases = [put(root / "releases" / str(number) / "p.yaml", str(number)) for number in range(4)]
    current = root / "releases" / "current"
    current.symlink_to("0")
    return current / "p.yaml", [
        lambda: point(current, "1"),
        lambda: point(current, releases[2].parent),
        lambda: releases[2].write_text("3"),
    ]


def link_far_up(root: Path) -> tuple[Path, Steps]:
    first, second = (put(root / name / "a" / "b" / "p.yaml", text) for name, text in (("one", "0"), ("two", "1")))
    link = root / "link"
    link.symlink_to("one")
    return link / "a" / "b" / "p.yaml", [
        lambda: point(link, "two"),
        lambda: second.write_text("2"),
        lambda: point(link, put(first, "3").parents[2]),
    ]


def file_in_another_directory(root: Path) -> tuple[Path, Steps]:
    first, second = put(root / "one" / "x.yaml", "0"), put(root / "two" / "y.yaml", "2")
    link = root / "etc" / "p.yaml"
    link.parent.mkdir()
    link.symlink_to("../one/x.yaml")
    return link, [
        lambda: first.write_text("1"),
        lambda: point(link, second),
        lambda: second.write_text("3"),
    ]


def chain(root: Path) -> tuple[Path, Steps]:
    first, second = put(root / "c" / "one", "0"), put(root / "d" / "two", "1")
    for name in ("a", "b"):
        root.joinpath(name).mkdir()
    middle, link = root / "b" / "middle", root / "a" / "p.yaml"
    middle.symlink_to(first)
    link.symlink_to("../b/middle")
    return link, [
        lambda: point(middle, second),
        lambda: second.write_text("2"),
        lambda: point(link, put(root / "e" / "three", "3")),
    ]


def config_map(root: Path) -> tuple[Path, Steps]:
    file = root / "etc" / "p.yaml"
    mount(file, "0")
    return file, [lambda text=text: mount(file, text, version=int(text) + 1) for text in ("1", "2", "3")]  # type: ignore[misc]


def exchanged_directory(root: Path) -> tuple[Path, Steps]:
    file = put(root / "a" / "b" / "c" / "p.yaml", "0")
    put(root / "new" / "b" / "c" / "p.yaml", "1")
    return file, [
        lambda: ((root / "a").rename(root / "old"), (root / "new").rename(root / "a")),
        lambda: file.write_text("2"),
        lambda: put(root / "a" / "b" / "c" / "other", "3").replace(file),
    ]


def removed_directory(root: Path) -> tuple[Path, Steps]:
    file = put(root / "a" / "b" / "c" / "p.yaml", "0")
    return file, [
        lambda: replant(root / "a", file, "1"),
        lambda: shutil.rmtree(root / "a" / "b"),
        lambda: put(file, "3"),
    ]


def dangling_link(root: Path) -> tuple[Path, Steps]:
    link = root / "etc" / "p.yaml"
    link.parent.mkdir()
    link.symlink_to(root / "later" / "deep" / "p.yaml")
    return link, [
        lambda: put(root / "later" / "deep" / "p.yaml", "1"),
        lambda: (root / "later").rename(root / "away"),
        lambda: point(root / "later", "away"),
    ]


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def next_change(changes: AsyncGenerator[None, None]) -> None:
    async with asyncio.timeout(LIMIT):
        await anext(changes)


@pytest.mark.parametrize(
    "layout",
    [
        plain,
        current_release,
        link_far_up,
        file_in_another_directory,
        chain,
        config_map,
        exchanged_directory,
        removed_directory,
        dangling_link,
    ],
)
@pytest.mark.usefixtures("inotify")
async def test_a_file_that_changes_by_any_part_of_its_path_is_noticed(
    tmp_path: Path, layout: Callable[[Path], tuple[Path, Steps]]
) -> None:
    path, steps = layout(tmp_path)
    async with aclosing(file_changes(path, settle=0)) as changes:
        await next_change(changes)
        for step in steps:
            before = text_of(path)
            step()
            after = text_of(path)
            assert after != before
            seen = before
            while seen != after:  # each step may be seen in parts
                await next_change(changes)
                seen = text_of(path)


async def test_a_file_without_inotify_is_looked_at_now_and_then(tmp_path: Path) -> None:
    path, steps = current_release(tmp_path)
    changes = file_changes(path, settle=0)
    async with aclosing(changes):
        with no_more_file_descriptors():
            await next_change(changes)
        assert inotify_instances() == 0
        for step in steps:
            step()
            after = path.read_text()
            await next_change(changes)
            assert path.read_text() == after


@pytest.mark.usefixtures("inotify")
async def test_all_directories_of_a_path_share_one_inotify_instance(tmp_path: Path) -> None:
    path, _ = chain(tmp_path)
    async with aclosing(file_changes(path, settle=0)) as changes:
        await next_change(changes)
        assert inotify_instances() == 1
    assert inotify_instances() == 0


@pytest.mark.usefixtures("inotify")
async def test_a_change_is_reported_when_the_file_has_settled(tmp_path: Path) -> None:
    path, _ = plain(tmp_path)
    async with aclosing(file_changes(path)) as changes:
        await next_change(changes)
        written = time.monotonic()
        path.write_text("1")
        await next_change(changes)
        assert time.monotonic() - written >= SETTLE > 0.05


def test_only_directories_with_a_link_or_the_file_are_watched_for_their_entries(tmp_path: Path) -> None:
    """A path below /tmp is none of the business of others who write there."""
    path, _ = current_release(tmp_path)
    found = {directory.path: directory.entries for directory in lookup_directories(path)}
    releases = tmp_path / "releases"
    assert {directory for directory, entries in found.items() if entries} == {releases, releases / "0"}
    assert found.keys() == {*releases.parents, releases, releases / "0"}


def test_a_path_that_ends_nowhere_is_looked_up_as_far_as_it_goes(tmp_path: Path) -> None:
    found = {directory.path for directory in lookup_directories(tmp_path / "none" / "deep" / "p.yaml")}
    assert found == {tmp_path, *tmp_path.parents}


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    tmp_path.joinpath("a").symlink_to("b")
    tmp_path.joinpath("b").symlink_to("a")
    assert {directory.path for directory in lookup_directories(tmp_path / "a" / "p.yaml")} == {
        tmp_path,
        *tmp_path.parents,
    }
