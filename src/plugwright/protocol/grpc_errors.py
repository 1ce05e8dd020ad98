"""Maps our exceptions to gRPC status codes and back; no other module knows both."""

from collections.abc import Iterator
from contextlib import contextmanager

from plugwright.errors import (
    PeerGone,
    PeerRefused,
    PeerSilent,
    PluginError,
    PluginTimeout,
    PlugwrightError,
    ProtocolError,
)
from plugwright.protocol.grpc import BrokenExchange, GrpcError, Status

__all__ = ["from_peer", "to_peer"]

# The first matching class decides.
_CODES: tuple[tuple[type[PlugwrightError], Status], ...] = (
    (ProtocolError, Status.INVALID_ARGUMENT),
    (PluginTimeout, Status.DEADLINE_EXCEEDED),
    (PluginError, Status.INTERNAL),
    (PeerGone, Status.UNAVAILABLE),
)
_MESSAGE_LIMIT = 2_000  # characters: grpc-message travels in a header


def to_peer(error: PlugwrightError) -> GrpcError:
    """The caller's gRPC status for an exception of our own service."""
    if isinstance(error, PeerRefused):
        return GrpcError(Status[error.code], error.message[:_MESSAGE_LIMIT])
    code = next((status for kind, status in _CODES if isinstance(error, kind)), Status.UNKNOWN)
    return GrpcError(code, str(error)[:_MESSAGE_LIMIT])


@contextmanager
def from_peer(peer: str) -> Iterator[None]:
    """Around a call to `peer`: the library's exceptions become ours."""
    try:
        yield
    except GrpcError as error:
        raise _refusal(peer, error) from error
    except ConnectionRefusedError as error:
        raise PeerGone(f"no process listens on {peer}") from error
    except TimeoutError as error:  # an OSError too
        raise PeerSilent(f"{peer} did not answer in time") from error
    except OSError as error:
        raise PeerGone(f"{peer}: {error.strerror or str(error) or type(error).__name__}") from error
    except BrokenExchange as error:
        raise PeerGone(f"{peer}: {error}") from error


def _refusal(peer: str, error: GrpcError) -> PlugwrightError:
    if error.status is Status.UNAVAILABLE:
        return PeerGone(f"{peer}: {error.message or 'unavailable'}", error.message or "")
    if error.status is Status.DEADLINE_EXCEEDED and not error.message:  # the peer kept our deadline, and was first
        return PeerSilent(f"{peer} did not answer in time")
    return PeerRefused(error.status.name, error.message or "")
