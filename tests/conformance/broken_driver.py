"""The small driver, which ends with each claim: `python broken_driver.py DIR`, for the tests of findings."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a program of its own

from tests.conformance.driver import SmallDriver

from plugwright.protocol.dra import Claim, PreparedDevice


class EndsWithEachClaim(SmallDriver):
    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        os.write(1, b"panic: runtime error: index out of range [0] with length 0\n")
        os._exit(2)


if __name__ == "__main__":
    driver = EndsWithEachClaim(Path(sys.argv[1]), Path(os.environ["CDI_ROOT"]), os.environ["NODE_NAME"])
    sys.exit(asyncio.run(driver.run()))
