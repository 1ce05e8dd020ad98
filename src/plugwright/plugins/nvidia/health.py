"""When a GPU is not fit for a new pod, and when it is again: rules as data, applied to what was seen.

An Xid is the driver's number for what went wrong; NVIDIA's catalogue says what each means and what has to be done. What
was seen is `watch`'s to collect. Everything here is plain functions over values.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from plugwright.errors import ConfigError
from plugwright.plugins.nvidia.choices import Action
from plugwright.plugins.nvidia.driver import Facts, Recovery

__all__ = ["DEFAULTS", "NEEDS_RESET", "Action", "Incident", "Rules", "Verdict", "after_facts", "after_xid", "judge"]


def _codes(text: str) -> set[int]:
    found: set[int] = set()
    for each in text.split():
        first, _, last = each.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


# From NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), by the immediate action it asks for.
_RESTART_APP_OR_IGNORE = _codes(
    "8 11 13-14 25 31-32 37-41 43-45 60 63 66-72 75-78 80 82-86 88-89 92-94 96-108 121 126-135 137 139 141-142 152-154 "
    "157 160-166 168 171-172"
)
# RESET_GPU, RESTART_BM and RESTART_VM; 48 and 74 by their workflows, 167 and 169 by their names.
NEEDS_RESET = frozenset(_codes("46 48 61-62 64 74 79 95 109-110 119-120 136 140 143 151 155-156 158 167 169"))
_ASK_THE_DRIVER = _codes("144-150 159")  # some are fatal and some are nothing: the driver's advice tells which
_CHECK_THE_MACHINE = {54}  # its power cable is not connected
DEFAULTS: Mapping[int, Action] = {
    **dict.fromkeys(_RESTART_APP_OR_IGNORE, Action.IGNORE),
    **dict.fromkeys(NEEDS_RESET, Action.RESET),
    **dict.fromkeys(_ASK_THE_DRIVER, Action.PROBE),
    **dict.fromkeys(_CHECK_THE_MACHINE, Action.FAIL),
}
_MEANINGS = {
    13: "graphics engine exception",
    31: "memory page fault",
    46: "GPU stopped processing",
    48: "double bit ECC error",
    54: "power cable not connected",
    62: "internal micro-controller halt",
    64: "failure to replace a row of memory",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    119: "GSP does not answer",
    120: "GSP error",
    136: "link training failed",
    140: "ECC error that could not be handled",
    143: "initialisation error",
    158: "fatal timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`xids` are exceptions from the defaults, `other` is for codes that nobody knows. Times are in seconds."""

    xids: Mapping[int, Action] = field(default_factory=dict, hash=False)
    other: Action = Action.QUIET
    quiet: float = 300.0
    ecc: bool = True  # uncorrected errors count, unless the driver says that nothing has to be done
    pending: bool = False  # a row that waits for a reset to be replaced counts
    unwatched: bool = True  # events that cannot be registered count
    off: bool = False  # nothing counts but a GPU that does not answer

    def __post_init__(self) -> None:
        for code, action in self.xids.items():
            if code in NEEDS_RESET and action in (Action.PROBE, Action.QUIET):
                raise ConfigError(f"Xid {code} needs a reset: its action is ignore, reset or fail, not {action}")
        if self.other is Action.RESET or self.quiet < 0:
            raise ConfigError("other Xids are ignored, probed, quiet or fail, and quiet is not negative")

    def action(self, xid: int) -> Action:
        return self.xids.get(xid, DEFAULTS.get(xid, self.other))


@dataclass(frozen=True, slots=True)
class Incident:
    """An Xid that was seen, last at `at`. `impaired`: since then the GPU was away, or the driver asked for a reset."""

    xid: int
    at: float
    times: int = 1
    impaired: bool = False
    reset: bool = False  # it was impaired and is no longer


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a GPU is unfit, empty if it is fit; and when to look again, in seconds, None if only news can change it."""

    reason: str = ""
    again: float | None = None


def after_xid(incidents: Iterable[Incident], xid: int, now: float) -> tuple[Incident, ...]:
    known = {each.xid: each for each in incidents}
    before = known.get(xid, Incident(xid, now, 0))
    known[xid] = Incident(xid, now, before.times + 1)
    return tuple(sorted(known.values(), key=lambda each: each.xid))


def after_facts(incidents: Iterable[Incident], facts: Facts) -> tuple[Incident, ...]:
    """Remembers whether the GPU was away since, and whether it is back."""
    impaired = facts.away or facts.recovery not in (Recovery.NONE, Recovery.UNKNOWN)
    return tuple(
        replace(each, impaired=each.impaired or impaired, reset=_is_back(each, facts, impaired)) for each in incidents
    )


def _is_back(incident: Incident, facts: Facts, impaired: bool) -> bool:
    """A GPU that merely does not answer is not back yet, and was not away for that."""
    return incident.reset if facts.fault and not impaired else incident.impaired and not impaired


def judge(rules: Rules, facts: Facts, incidents: Iterable[Incident], now: float) -> Verdict:
    """What is wrong with the GPU itself comes first, then what has happened to it."""
    reason = _unwell(rules, facts)
    if reason:
        return Verdict(reason)
    if rules.off:
        return Verdict()
    verdicts = [_standing(rules, each, now) for each in incidents]
    return min((each for each in verdicts if each.reason), key=lambda each: each.again or 0.0, default=Verdict())


def _unwell(rules: Rules, facts: Facts) -> str:
    if facts.fault:
        return facts.fault
    if rules.off:
        return ""
    if facts.recovery not in (Recovery.NONE, Recovery.UNKNOWN):
        return f"the driver asks for: {facts.recovery}"
    if facts.remap_failed:
        return "a broken row of memory could not be replaced"
    if facts.remap_pending and rules.pending:
        return "a broken row of memory waits for a reset"
    if facts.ecc_uncorrected and rules.ecc and facts.recovery is Recovery.UNKNOWN:
        return f"{facts.ecc_uncorrected} uncorrected ECC errors"
    return ""


def _standing(rules: Rules, incident: Incident, now: float) -> Verdict:
    """`_unwell` has found nothing: the probe is passed."""
    action = rules.action(incident.xid)
    left = incident.at + rules.quiet - now
    if action in (Action.IGNORE, Action.PROBE) or (action is Action.RESET and incident.reset):
        return Verdict()
    if action is Action.QUIET:
        return Verdict(f"{_named(incident)}, waiting for quiet", left) if left > 0 else Verdict()
    wanted = "a reset" if action is Action.RESET else "an operator"
    return Verdict(f"{_named(incident)}, waiting for {wanted}")


def _named(incident: Incident) -> str:
    meaning = _MEANINGS.get(incident.xid, "")
    times = f" {incident.times} times" if incident.times > 1 else ""
    return f"Xid {incident.xid}{f' ({meaning})' if meaning else ''}{times}"
