"""Allocations as the kubelet's checkpoint keeps them, and read back as values of the model."""

from plugwright.model import Allocation
from plugwright.protocol import messages
from tiny_kubelet import to_allocation

__all__ = ["decode_allocation", "encode_allocation"]


def encode_allocation(allocation: Allocation) -> bytes:
    [response] = messages.from_allocations([allocation]).container_responses
    return response.SerializeToString(deterministic=True)


def decode_allocation(response: bytes) -> Allocation:
    return to_allocation(messages.decode(response))
