"""Events and Node conditions about the devices of a node, written to the API server by `plugwright node-events`."""
