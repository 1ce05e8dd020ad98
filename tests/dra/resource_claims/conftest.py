"""A node with four tape drives, whose driver prepares claims."""

from pathlib import Path

import pytest
from tests.dra.resource_claims.claim_node import ClaimNode


@pytest.fixture
def node(root: Path) -> ClaimNode:
    return ClaimNode.on(root)
