"""A plugin's answer to Allocate as the kubelet keeps it: bytes to values, nothing checked.

The kubelet passes paths and permissions on to the runtime as they are, so `model`'s values, which refuse what
could never work, would lose what a plugin really said.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from plugwright.errors import MalformedMessage
from plugwright.protocol.deviceplugin.v1beta1 import deviceplugin_pb2 as pb

__all__ = ["Answer", "AnsweredMount", "AnsweredNode", "decode"]


@dataclass(frozen=True, slots=True)
class AnsweredMount:
    host_path: str
    container_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class AnsweredNode:
    host_path: str
    container_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What one plugin gives one container."""

    env: Mapping[str, str]
    mounts: tuple[AnsweredMount, ...]
    nodes: tuple[AnsweredNode, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]


def decode(answer: bytes) -> Answer:
    try:
        message = pb.ContainerAllocateResponse.FromString(answer)
    except DecodeError as error:
        raise MalformedMessage(f"not a plugin's answer: {error}") from error
    return Answer(
        env=dict(sorted(message.envs.items())),
        mounts=tuple(AnsweredMount(each.host_path, each.container_path, each.read_only) for each in message.mounts),
        nodes=tuple(AnsweredNode(each.host_path, each.container_path, each.permissions) for each in message.devices),
        annotations=dict(sorted(message.annotations.items())),
        cdi=tuple(each.name for each in message.cdi_devices),
    )
