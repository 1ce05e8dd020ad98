"""Which API offers each device where both serve a resource, and how devices move from one to the other."""
