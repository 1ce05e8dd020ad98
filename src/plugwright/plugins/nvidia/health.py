"""Whether a GPU is suitable for a new pod: applies the health rules to its health values and reported Xids.

Plain functions over values. `monitor` collects the values and the Xids, and `xids` defines the rule for each code.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from plugwright.plugins.nvidia.config import NvidiaHealth
from plugwright.plugins.nvidia.driver import SWITCH, GpuHealth, RecoveryAction
from plugwright.plugins.nvidia.xids import XIDS, XidAction

__all__ = [
    "HealthAssessment",
    "XidRecord",
    "assess",
    "assess_switches",
    "is_impaired",
    "record_xid",
    "update_records",
    "xid_action",
]


class XidRecord(msgspec.Struct, frozen=True):
    """An Xid reported by a GPU, last at `at`.

    `impaired`: since then the GPU was lost, or the driver recommended a reset.
    """

    xid: int
    at: float
    times: int = 1
    impaired: bool = False
    reset: bool = False  # it was impaired and no longer is


class HealthAssessment(msgspec.Struct, frozen=True):
    """Why a GPU is unhealthy, empty if it is healthy; time alone can change this after `recheck_after` seconds."""

    reason: str = ""
    recheck_after: float | None = None
    code: str = ""  # of the reason


def record_xid(records: Iterable[XidRecord], xid: int, now: float, impaired: bool = False) -> tuple[XidRecord, ...]:
    by_code = {record.xid: record for record in records}
    times = by_code[xid].times if xid in by_code else 0
    by_code[xid] = XidRecord(xid, now, times + 1, impaired)
    return tuple(sorted(by_code.values(), key=lambda record: record.xid))


def update_records(records: Iterable[XidRecord], health: GpuHealth) -> tuple[XidRecord, ...]:
    """Notes whether the GPU has been impaired since each Xid, and whether it has returned."""
    impaired = is_impaired(health)
    return tuple(
        replace(record, impaired=record.impaired or impaired, reset=_is_reset(record, health, impaired))
        for record in records
    )


def is_impaired(health: GpuHealth) -> bool:
    """Whether the GPU is lost, or the driver recommends a reset.

    A driver before 570, which recommends nothing, counts uncorrected errors since the last reset: the count is 0 again
    after the next reset.
    """
    if health.recovery is RecoveryAction.UNKNOWN:
        return health.away or bool(health.ecc_uncorrected)
    return health.away or health.recovery is not RecoveryAction.NONE


def _is_reset(record: XidRecord, health: GpuHealth, impaired: bool) -> bool:
    """Whether the GPU was reset. A merely unresponsive GPU was neither lost nor reset."""
    return record.reset if health.fault and not impaired else record.impaired and not impaired


def xid_action(rules: NvidiaHealth, code: int) -> XidAction:
    own = {int(text): action for text, action in rules.xids.items()}
    return own.get(code, XIDS[code].action if code in XIDS else rules.other)


def assess(rules: NvidiaHealth, health: GpuHealth, records: Iterable[XidRecord], now: float) -> HealthAssessment:
    """Assesses the GPU's own health values first, then its reported Xids."""
    fault = _fault(rules, health)
    if fault.reason:
        return fault
    if not rules.checks:
        return HealthAssessment()
    assessments = [_assess_xid(rules, record, now) for record in records]
    unhealthy = [assessment for assessment in assessments if assessment.reason]
    return min(unhealthy, key=lambda assessment: assessment.recheck_after or 0.0, default=HealthAssessment())


def assess_switches(rules: NvidiaHealth, records: Mapping[str, Iterable[XidRecord]]) -> HealthAssessment:
    """Fatal errors of NVSwitches affect all GPUs: the fabric between them is down until they are reset together."""
    if not rules.checks or not rules.fabric:
        return HealthAssessment()
    for switch in sorted(name for name in records if name.startswith(SWITCH)):
        for record in records[switch]:
            reason = f"SXid {record.xid} of {switch}, waiting for a reset of all GPUs and switches"
            return HealthAssessment(reason, code=f"sxid-{record.xid}")
    return HealthAssessment()


def _fault(rules: NvidiaHealth, health: GpuHealth) -> HealthAssessment:
    if health.fault:
        return HealthAssessment(health.fault, code="lost" if health.away else "no-answer")
    if not rules.checks:
        return HealthAssessment()
    if health.recovery not in (RecoveryAction.NONE, RecoveryAction.UNKNOWN):
        return HealthAssessment(f"the driver recommends: {health.recovery}", code="recovery")
    if health.remap_failed:
        return HealthAssessment("a faulty row of memory could not be remapped", code="remap")
    if health.remap_pending and rules.pending:
        return HealthAssessment("a faulty row of memory is remapped at the next reset", code="remap")
    # An error in DRAM is contained if rows are remapped: as for Xid 94, only the application is restarted.
    errors = health.ecc_uncorrected if health.ecc_sram is None else health.ecc_sram
    if errors and rules.ecc and health.recovery is RecoveryAction.UNKNOWN:
        return HealthAssessment(f"{errors} uncorrected ECC errors", code="ecc")
    if health.fabric and rules.fabric:
        return HealthAssessment(health.fabric, code="fabric")
    return HealthAssessment()


def _assess_xid(rules: NvidiaHealth, record: XidRecord, now: float) -> HealthAssessment:
    """The assessment of an Xid for a GPU whose health values are normal."""
    action = xid_action(rules, record.xid)
    left = record.at + rules.quiet - now
    if action in (XidAction.IGNORE, XidAction.PROBE) or (action is XidAction.RESET and record.reset):
        return HealthAssessment()
    code = f"xid-{record.xid}"
    if action is XidAction.QUIET:
        reason = f"{_describe(record)}, waiting for quiet"
        return HealthAssessment(reason, left, code) if left > 0 else HealthAssessment()
    awaited = "a reset" if action is XidAction.RESET else "an operator"
    return HealthAssessment(f"{_describe(record)}, waiting for {awaited}", code=code)


def _describe(record: XidRecord) -> str:
    meaning = XIDS[record.xid].meaning if record.xid in XIDS else ""
    times = f" {record.times} times" if record.times > 1 else ""
    return f"Xid {record.xid}{f' ({meaning})' if meaning else ''}{times}"
