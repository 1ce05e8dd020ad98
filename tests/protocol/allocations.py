"""Allocations as the kubelet's checkpoint keeps them, and read back as values of the model."""

from tests.plugin_client import to_allocation
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.model import Allocation
from plugwright.protocol import messages

__all__ = ["decode_allocation", "encode_allocation"]


def encode_allocation(allocation: Allocation) -> bytes:
    [response] = pb.AllocateResponse.FromString(messages.encode_allocations([allocation])).container_responses
    return response.SerializeToString(deterministic=True)


def decode_allocation(response: bytes) -> Allocation:
    return to_allocation(messages.decode(response))
