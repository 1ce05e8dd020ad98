"""ResourceClaims on this node: read, prepared, remembered, and given back."""
