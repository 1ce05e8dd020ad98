"""Events and Node conditions about the devices of a node: what `plugwright node-events` writes to the API server."""
