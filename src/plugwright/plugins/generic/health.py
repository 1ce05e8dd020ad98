"""When a device counts as broken: not at the first bad word, and not healed by the first good one. Pure."""

from dataclasses import dataclass

__all__ = ["Hysteresis", "Standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a check has led to: `reason` is empty while the device is good, None while nothing is known."""

    reason: str | None = None
    against: int = 0  # results in a row that speak against it


@dataclass(frozen=True, slots=True)
class Hysteresis:
    failures: int = 2
    successes: int = 2

    def after(self, before: Standing, fault: str) -> Standing:
        """The standing after a result: empty if it was good. The first one decides; later ones need company."""
        if before.reason is None:
            return Standing(fault)
        if bool(fault) == bool(before.reason):
            return Standing(fault)  # the newest reason is shown
        needed = self.failures if fault else self.successes
        return Standing(fault) if before.against + 1 >= needed else Standing(before.reason, before.against + 1)
