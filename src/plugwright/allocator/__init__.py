"""Which devices a ResourceClaim gets, and why it gets none. Pure: no I/O, no cluster."""

__all__: list[str] = []
