"""A claim is read from the API server; whatever it answers decides whether a pod waits or its claim is over."""

from collections.abc import Mapping

import pytest
from tests.dra.resource_claims.claim_node import DRIVER, POOL, claim, document

from plugwright.dra.resource_claims.allocated_claims import AllocatedClaims
from plugwright.errors import ClaimGone, ClaimWaits, MalformedMessage, PeerGone, PeerRefused


class Answering:
    def __init__(self, answer: Mapping[str, object] | Exception) -> None:
        self.answer = answer

    async def get(self, path: str) -> Mapping[str, object]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (PeerRefused("NotFound", "no such claim"), ClaimGone, "ResourceClaim default/one does not exist"),
        (PeerRefused("Forbidden", "not your node"), ClaimWaits, "one cannot be read: not your node"),
        (PeerGone("connection refused"), ClaimWaits, "the API server does not answer: connection refused"),
        (MalformedMessage("nested too deep"), ClaimWaits, "one cannot be read: nested too deep"),
        (document("one", uid="u-2"), ClaimGone, "was replaced: its uid is u-2"),
    ],
    ids=["not found", "forbidden", "away", "nonsense", "another claim of this name"],
)
async def test_only_a_claim_that_is_not_there_is_over(
    answer: Mapping[str, object] | Exception, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        await AllocatedClaims(Answering(answer), DRIVER, POOL).allocated(claim())
