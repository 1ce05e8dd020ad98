"""`serve: both`: which API offers each device, and how a device moves to the other. Loaded by `serve: both` only."""
