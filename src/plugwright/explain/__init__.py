"""Explains why a pod waits, whether it would run, and mistakes in claims.

`reading` reads a cluster as a `World` of values; `explanation` is the answer about one pod. `oracle` decides whether a
node can run a pod, `relaxations` lists single changes, `search` finds sufficient ones. A cure is reported only after
the oracle has confirmed it.

The modules are imported one by one: fleet commands need only `world`.
"""

__all__: list[str] = []
