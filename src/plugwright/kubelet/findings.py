"""What the real kubelet would have done, where it has a defect or where a pod or plugin asks for trouble.

A finding names the fact's number, says what happened here and what a real kubelet would have done; the emulator
goes on safely. In strict mode findings are raised as well.
"""

from collections.abc import Callable
from dataclasses import dataclass

from plugwright.errors import KubeletFindings

__all__ = ["Finding", "Findings"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`fact` is the number of the behaviour; `about` a resource, a pod or a file."""

    fact: str
    about: str
    happened: str
    really: str

    def __str__(self) -> str:
        return f"{self.about}: {self.happened}; a real kubelet {self.really} ({self.fact})"


class Findings:
    """Every finding of one kubelet, in order; `tell` hears of each."""

    def __init__(self, tell: Callable[[Finding], None], *, strict: bool) -> None:
        self._tell = tell
        self._strict = strict
        self._found: list[Finding] = []
        self._raised = 0

    def report(self, fact: str, about: str, happened: str, really: str) -> None:
        finding = Finding(fact, about, happened, really)
        self._found.append(finding)
        self._tell(finding)

    @property
    def all(self) -> tuple[Finding, ...]:
        return tuple(self._found)

    def check(self) -> None:
        """In strict mode: raises what was found since it last did."""
        unraised = self._found[self._raised :]
        self._raised = len(self._found)
        if self._strict and unraised:
            raise KubeletFindings([str(finding) for finding in unraised])
