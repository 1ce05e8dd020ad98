"""`serve: both`: which API offers each device, and how a device moves to the other. Only `serve: both` loads it."""
