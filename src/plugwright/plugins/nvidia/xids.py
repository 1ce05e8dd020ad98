"""NVIDIA's Xid codes: their meaning, and the condition under which the GPU can be used again.

The actions follow the immediate action in NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), one row per code.
`health` applies them to a GPU.
"""

from enum import StrEnum
from typing import NamedTuple

__all__ = ["NEEDS_RESET", "XIDS", "Xid", "XidAction"]


class XidAction(StrEnum):
    """The condition for a GPU to be healthy again after an Xid."""

    IGNORE = "ignore"  # it stays healthy: an application's error, or informational
    PROBE = "probe"  # once all its health values are normal
    QUIET = "quiet"  # once they are normal and no such Xid was reported for a while
    RESET = "reset"  # after a reset: it was lost and has returned, or the driver no longer recommends one
    FAIL = "fail"  # after `plugwright nvidia recover`


class Xid(NamedTuple):
    code: int
    meaning: str  # empty if the catalogue has no simple description
    action: XidAction


_ROWS = (
    # The catalogue's RESTART_APP, IGNORE and informational codes are IGNORE; RESET_GPU, RESTART_BM and RESTART_VM are
    # RESET, and so are 48 and 74 by their workflows and 167 and 169 by their names. PROBE is for codes both fatal and
    # harmless: the driver's recovery action distinguishes them.
    Xid(8, "", XidAction.IGNORE),
    Xid(11, "invalid or corrupted push buffer", XidAction.IGNORE),
    Xid(13, "graphics engine exception", XidAction.IGNORE),
    Xid(14, "", XidAction.IGNORE),
    Xid(25, "invalid or illegal push buffer stream", XidAction.IGNORE),
    Xid(31, "memory page fault", XidAction.IGNORE),
    Xid(32, "invalid or corrupted push buffer stream", XidAction.IGNORE),
    Xid(37, "driver firmware error", XidAction.IGNORE),
    Xid(38, "driver firmware error", XidAction.IGNORE),
    Xid(39, "copy engine error", XidAction.IGNORE),
    Xid(40, "copy engine error", XidAction.IGNORE),
    Xid(41, "copy engine error", XidAction.IGNORE),
    Xid(43, "", XidAction.IGNORE),
    Xid(44, "graphics engine fault during context switch", XidAction.IGNORE),
    Xid(45, "application's channels were removed", XidAction.IGNORE),
    Xid(46, "GPU stopped processing", XidAction.RESET),
    Xid(48, "double bit ECC error", XidAction.RESET),
    Xid(54, "power cable not connected", XidAction.FAIL),
    Xid(60, "video processor exception", XidAction.IGNORE),
    Xid(61, "internal micro-controller breakpoint", XidAction.RESET),
    Xid(62, "internal micro-controller halt", XidAction.RESET),
    Xid(63, "row of memory remapped or page retired", XidAction.IGNORE),
    Xid(64, "failure to replace a row of memory", XidAction.RESET),
    Xid(66, "illegal access by the driver", XidAction.IGNORE),
    Xid(67, "illegal access by the driver", XidAction.IGNORE),
    Xid(68, "video decoder exception", XidAction.IGNORE),
    Xid(69, "graphics engine class error", XidAction.IGNORE),
    Xid(70, "copy engine error", XidAction.IGNORE),
    Xid(71, "copy engine error", XidAction.IGNORE),
    Xid(72, "copy engine error", XidAction.IGNORE),
    Xid(74, "NVLink error", XidAction.RESET),
    Xid(75, "copy engine error", XidAction.IGNORE),
    Xid(76, "copy engine error", XidAction.IGNORE),
    Xid(77, "copy engine error", XidAction.IGNORE),
    Xid(78, "vGPU start error", XidAction.IGNORE),
    Xid(79, "GPU has fallen off the bus", XidAction.RESET),
    Xid(80, "corrupted data sent to the GPU", XidAction.IGNORE),
    Xid(82, "JPEG engine error", XidAction.IGNORE),
    Xid(83, "video decoder error", XidAction.IGNORE),
    Xid(84, "video decoder error", XidAction.IGNORE),
    Xid(85, "copy engine error", XidAction.IGNORE),
    Xid(86, "optical flow engine error", XidAction.IGNORE),
    Xid(88, "video decoder error", XidAction.IGNORE),
    Xid(89, "video decoder error", XidAction.IGNORE),
    Xid(92, "high rate of single bit ECC errors", XidAction.IGNORE),
    Xid(93, "erase limit of the InfoROM exceeded", XidAction.IGNORE),
    Xid(94, "contained memory error", XidAction.IGNORE),
    Xid(95, "uncontained memory error", XidAction.RESET),
    Xid(96, "", XidAction.IGNORE),
    Xid(97, "", XidAction.IGNORE),
    Xid(98, "", XidAction.IGNORE),
    Xid(99, "", XidAction.IGNORE),
    Xid(100, "", XidAction.IGNORE),
    Xid(101, "", XidAction.IGNORE),
    Xid(102, "", XidAction.IGNORE),
    Xid(103, "", XidAction.IGNORE),
    Xid(104, "", XidAction.IGNORE),
    Xid(105, "", XidAction.IGNORE),
    Xid(106, "", XidAction.IGNORE),
    Xid(107, "", XidAction.IGNORE),
    Xid(108, "", XidAction.IGNORE),
    Xid(109, "context switch timeout", XidAction.RESET),
    Xid(110, "", XidAction.RESET),
    Xid(119, "GSP does not answer", XidAction.RESET),
    Xid(120, "GSP error", XidAction.RESET),
    Xid(121, "C2C link error", XidAction.IGNORE),
    Xid(126, "", XidAction.IGNORE),
    Xid(127, "", XidAction.IGNORE),
    Xid(128, "", XidAction.IGNORE),
    Xid(129, "", XidAction.IGNORE),
    Xid(130, "", XidAction.IGNORE),
    Xid(131, "", XidAction.IGNORE),
    Xid(132, "", XidAction.IGNORE),
    Xid(133, "", XidAction.IGNORE),
    Xid(134, "", XidAction.IGNORE),
    Xid(135, "", XidAction.IGNORE),
    Xid(136, "link training failed", XidAction.RESET),
    Xid(137, "", XidAction.IGNORE),
    Xid(139, "", XidAction.IGNORE),
    Xid(140, "ECC error that could not be handled", XidAction.RESET),
    Xid(141, "", XidAction.IGNORE),
    Xid(142, "", XidAction.IGNORE),
    Xid(143, "initialisation error", XidAction.RESET),
    Xid(144, "", XidAction.PROBE),
    Xid(145, "", XidAction.PROBE),
    Xid(146, "", XidAction.PROBE),
    Xid(147, "", XidAction.PROBE),
    Xid(148, "", XidAction.PROBE),
    Xid(149, "", XidAction.PROBE),
    Xid(150, "", XidAction.PROBE),
    Xid(151, "", XidAction.RESET),
    Xid(152, "", XidAction.IGNORE),
    Xid(153, "", XidAction.IGNORE),
    Xid(154, "recovery action changed", XidAction.IGNORE),
    Xid(155, "", XidAction.RESET),
    Xid(156, "", XidAction.RESET),
    Xid(157, "", XidAction.IGNORE),
    Xid(158, "fatal timeout", XidAction.RESET),
    Xid(159, "", XidAction.PROBE),
    Xid(160, "", XidAction.IGNORE),
    Xid(161, "", XidAction.IGNORE),
    Xid(162, "", XidAction.IGNORE),
    Xid(163, "", XidAction.IGNORE),
    Xid(164, "", XidAction.IGNORE),
    Xid(165, "", XidAction.IGNORE),
    Xid(166, "", XidAction.IGNORE),
    Xid(167, "", XidAction.RESET),
    Xid(168, "", XidAction.IGNORE),
    Xid(169, "", XidAction.RESET),
    Xid(171, "", XidAction.IGNORE),
    Xid(172, "", XidAction.IGNORE),
)
XIDS = {xid.code: xid for xid in _ROWS}
NEEDS_RESET = frozenset(xid.code for xid in _ROWS if xid.action is XidAction.RESET)
