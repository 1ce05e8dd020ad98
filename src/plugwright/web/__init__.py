"""The page: the devices of a cluster in a browser, with their holders, as they change.

`cluster_objects` follows the API server and `daemon_reports` the daemons; `live_fleet` makes devices of both, node by
node. `page_server` answers the browser: `access_guard` decides who may ask, the modules named after views render them.
"""

__all__: list[str] = []
