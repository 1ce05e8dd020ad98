"""The real kubelet's words for what went wrong between it and a plugin.

Users, tests and plugins match on them; gRPC errors read as Go prints them.
"""

from plugwright.errors import MalformedMessage, PeerGone, PeerRefused, PeerSilent, PlugwrightError

__all__ = ["status_text"]

_SPELLINGS = {"CANCELLED": "Canceled"}  # Go spells all the others as one would guess
_MALFORMED = "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data"


def status_text(error: PlugwrightError) -> str:
    """As in `rpc error: code = Unknown desc = hw fault`."""
    code, message = _status(error)
    return f"rpc error: code = {code} desc = {message}"


def _status(error: PlugwrightError) -> tuple[str, str]:
    if isinstance(error, PeerSilent) or _gave_up_with_us(error):
        return "DeadlineExceeded", "context deadline exceeded"
    if isinstance(error, PeerRefused):
        return _SPELLINGS.get(error.code, error.code.title().replace("_", "")), error.message
    if isinstance(error, PeerGone):
        return "Unavailable", error.message or "error reading from server: EOF"
    if isinstance(error, MalformedMessage):
        return "Internal", _MALFORMED
    return "Unknown", str(error)


def _gave_up_with_us(error: PlugwrightError) -> bool:
    """A plugin knows our deadline, and its own word for it may arrive first."""
    return isinstance(error, PeerRefused) and error.code == "DEADLINE_EXCEEDED" and not error.message
