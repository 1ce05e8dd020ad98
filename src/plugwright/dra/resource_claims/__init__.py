"""ResourceClaims on this node: read, prepared, recorded, and unprepared."""
