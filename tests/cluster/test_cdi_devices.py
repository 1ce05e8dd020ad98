"""The CDI devices of a container that runs as a process: environment, nodes and mounts of the specs that name them."""

from pathlib import Path

import pytest

from plugwright.cluster.cdi_devices import apply_cdi_devices
from plugwright.errors import InvalidValue
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.protocol.messages import DeviceSpec, MountSpec
from plugwright.sdk import cdi


def granted(*names: str, **env: str) -> RunContainerOptions:
    return RunContainerOptions(env, (), (), {}, names)


def written(directory: Path) -> Path:
    node = cdi.DeviceNode("/dev/drive", host_path="/dev/st0", permissions="r")
    st0 = cdi.ContainerEdits(env={"DRIVE": "st0"}, device_nodes=[node])
    st1 = cdi.ContainerEdits(mounts=[cdi.Mount("/tapes", "/mnt", options=["ro", "bind"])])
    own = cdi.ContainerEdits(env={"KIND": "tape"}, hooks=[cdi.Hook("createContainer", "/bin/hook")])
    spec = cdi.Spec("example.com/tape", [cdi.Device("st0", st0), cdi.Device("st1", st1)], own)
    cdi.SpecDirectory(directory, owner="tape").write(spec)
    return directory


def test_edits_of_the_spec_and_of_its_devices_are_applied(tmp_path: Path) -> None:
    options = granted("example.com/tape=st0", "example.com/tape=st1", DRIVE="the pod's own")
    applied, limits = apply_cdi_devices(options, [written(tmp_path)])
    assert dict(applied.env) == {"DRIVE": "st0", "KIND": "tape"}
    assert applied.nodes == (DeviceSpec("/dev/st0", "/dev/drive", "r"),)
    assert applied.mounts == (MountSpec("/tapes", "/mnt", True),)
    assert limits == ["hooks of CDI devices are not applied"]


def test_only_the_named_devices_are_applied(tmp_path: Path) -> None:
    applied, _ = apply_cdi_devices(granted("example.com/tape=st1"), [written(tmp_path)])
    assert applied.nodes == ()
    assert dict(applied.env) == {"KIND": "tape"}


def test_a_container_without_cdi_devices_stays_as_it_is(tmp_path: Path) -> None:
    assert apply_cdi_devices(granted(A="b"), [tmp_path / "missing"]) == (granted(A="b"), [])


def test_a_name_that_no_spec_has_is_refused_as_by_a_runtime(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"must be in a spec in .*, got example.com/tape=st9, which are in none"):
        apply_cdi_devices(granted("example.com/tape=st9"), [written(tmp_path)])
