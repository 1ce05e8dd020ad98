"""The behaviour of kubelet versions; C in a comment is the table of versions beside the facts."""

import pytest

from plugwright.errors import ConfigError
from plugwright.kubelet.versions import DEFAULT_VERSION, LEGACY, VersionProfile, profile

VERSIONS = [f"1.{minor}" for minor in range(26, 38)]


def since(name: str) -> list[str]:
    """The versions whose newest release has it."""
    return [version for version in VERSIONS if getattr(profile(version), name)]


def test_the_default_is_the_version_described_in_full() -> None:
    assert DEFAULT_VERSION == "1.36"
    assert profile() == VersionProfile()


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("takes_cdi", "1.28"),  # 3.56
        ("keeps_sidecars", "1.29"),  # 3.33
        ("lists_sidecars", "1.30"),  # 6.6
        ("crashes_on_dropped", "1.34"),  # 2.25
        ("lists_active_only", "1.34"),  # 6.4
        ("narrows_masks", "1.36"),  # 5.6
        ("reports_device_health", "1.36"),  # 7.1
        ("endpoint_by_socket", "1.37"),  # 1.35, 1.37, 1.52, 2.22
        ("health_by_resource", "1.37"),  # 7.8
    ],
)
def test_behaviour_of_a_version_stays_in_later_ones(name: str, first: str) -> None:  # C
    assert since(name) == VERSIONS[VERSIONS.index(first) :]


def test_the_old_checkpoint_layout_was_read_up_to_1_30() -> None:  # 4.11
    assert since("reads_plain_lists") == ["1.26", "1.27", "1.28", "1.29", "1.30"]


@pytest.mark.parametrize(
    ("version", "only_sockets"),
    [
        ("1.26", False),
        ("1.30.14", False),
        ("1.31.0", True),
        ("1.31.1", False),
        ("1.31", False),
        ("1.32.0", False),
        ("1.32.9", False),
        ("1.33.0", True),
        ("1.36", True),
        ("1.37", True),
    ],
)
def test_start_cleans_by_version(version: str, only_sockets: bool) -> None:  # 1.18
    assert profile(version).cleans_only_sockets is only_sockets


def test_no_kubelet_of_today_writes_the_deprecation_file() -> None:  # 1.19
    assert since("writes_deprecation") == []
    assert profile(LEGACY).writes_deprecation


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("refuses_unhealthy", ["1.26.5", "1.27.2", "1.28.0"]),  # 3.16, 3.17
        ("skips_running", ["1.26.9", "1.27.6", "1.28.0"]),  # 3.14
        ("sees_every_running", ["1.34.7", "1.35.4", "1.36.0"]),  # 3.14
    ],
)
def test_backport_counts_from_its_patch_release(name: str, fixed: list[str]) -> None:  # C
    for version in fixed:
        minor, patch = version.rsplit(".", 1)
        assert getattr(profile(version), name)
        assert getattr(profile(minor), name)  # the newest of its releases
        assert patch == "0" or not getattr(profile(f"{minor}.{int(patch) - 1}"), name)


def test_a_version_may_be_written_as_the_kubelet_writes_it() -> None:
    assert profile("v1.36.4") == VersionProfile(name="1.36.4")


def test_only_the_legacy_profile_accepts_the_first_plugins() -> None:  # 1.33
    assert since("options_may_be_missing") == []
    assert profile(LEGACY).options_may_be_missing


@pytest.mark.parametrize("version", ["1.25", "1.38", "2.0", "1", "newest", "1.36.x", "", "1.36.4-rc.1"])
def test_unknown_version_is_refused_with_the_supported_range(version: str) -> None:
    with pytest.raises(ConfigError, match=r"must be (1\.26 to 1\.37|like 1\.36)"):
        profile(version)
