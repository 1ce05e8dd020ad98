"""The ledger: who holds each physical device of the node, through which API, since when, and how that is known.

It does not depend on the present configuration or on `serve`. `holding` has the published value, `overlaps` the pure
decisions, `offers` the memory of how hardware was last offered, `sources` the readers, and `ledger` joins them.
"""
