"""The claims prepared on this node: those in files, and those of pods whose driver has no readable file here."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from plugwright.errors import PlugwrightError
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.pod_resources import PodResources
from plugwright.sdk.holdings import sources
from plugwright.sdk.holdings.records import ClaimRecord
from plugwright.sdk.holdings.sources import ClaimFilesRead
from plugwright.system.blocking import BlockingCalls

__all__ = ["KnownClaims"]

T = TypeVar("T")

_LIMIT = 5.0  # seconds, for one read of files


class KnownClaims:
    """`directories` contain CDI specs, `drivers` are those of the configured resources."""

    def __init__(self, paths: KubeletPaths) -> None:
        self.files = ClaimFilesRead()
        self.directories: set[Path] = set()
        self.drivers: set[str] = set()
        self._paths = paths
        self._of_pods: tuple[ClaimRecord, ...] = ()
        self._disk = BlockingCalls("files of claims", _LIMIT)
        self._recorded = 0  # number of times that a driver in this process has recorded its claims

    @property
    def all(self) -> tuple[ClaimRecord, ...]:
        known, named = self.files.drivers, {(claim.driver, claim.device) for claim in self.files.claims}
        others = [
            claim for claim in self._of_pods if claim.driver not in known and (claim.driver, claim.device) not in named
        ]
        return (*self.files.claims, *others)

    def take_prepared(self, driver: str, claims: Iterable[ClaimRecord]) -> bool:
        """Takes the claims of a driver in this process; returns whether they differ from those of the last read."""
        self._recorded += 1
        claims, before = tuple(claims), self.files
        known = {replace(claim, names=()) for claim in before.claims if claim.driver == driver}
        if driver in before.drivers and known == set(claims):
            return False
        others = (claim for claim in before.claims if claim.driver != driver)
        self.files = replace(before, claims=(*others, *claims), drivers=before.drivers | {driver})
        return True

    def take_pods(self, pods: Collection[PodResources]) -> None:
        self._of_pods = tuple(sources.claims_in(pods))

    async def read(self, drivers: set[str], beside: Callable[[], T]) -> T:
        """Reads the files of the configured and of other `drivers`; returns what `beside` returns in the same thread.

        Reads again if a driver has recorded a claim meanwhile, because the files' content is then outdated. OSError or
        PlugwrightError if that is impossible; the known claims stay then, and can be incomplete.
        """
        directories, drivers, recorded = sorted(self.directories), drivers | self.drivers, -1

        def read() -> tuple[ClaimFilesRead, T]:
            return sources.read_claim_files(self._paths, directories, drivers), beside()

        try:
            while recorded != self._recorded:
                recorded = self._recorded
                files, found = await self._disk.run(read)
        except (OSError, PlugwrightError):
            self.files = replace(self.files, are_complete=False)
            raise
        self.files = files
        return found
