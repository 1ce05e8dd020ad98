"""Explains why a pod waits, whether it would run, and mistakes in claims.

`reading` reads a cluster as a `World` of values; `explanation` is the answer about one pod. `oracle` decides whether a
node can run a pod, `relaxations` lists single changes, `search` finds sufficient ones. A cure is reported only after
the oracle has confirmed it.
"""

from plugwright.explain.claim_answers import explain_claim
from plugwright.explain.explanation import Explanation, explain_pod, first_line
from plugwright.explain.reading import read_world
from plugwright.explain.waiting import WaitingList, waiting_pods
from plugwright.explain.world import World

__all__ = [
    "Explanation", "WaitingList", "World", "explain_claim", "explain_pod", "first_line", "read_world", "waiting_pods",
]  # fmt: skip
