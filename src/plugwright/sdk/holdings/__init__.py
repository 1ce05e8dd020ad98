"""The ledger: the holders of each physical device of the node, with the API, the time and the source of each holding.

It does not depend on the present configuration or on `serve`. `holding` contains the published value, `overlaps` the
pure decisions, `offers` the memory of how hardware was last offered, `sources` the readers, and `ledger` joins them.
"""
