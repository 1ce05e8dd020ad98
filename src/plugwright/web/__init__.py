"""The page: the devices of a cluster in a browser, with their holders, updated live.

`cluster_objects` follows the API server and `daemon_reports` the daemons; `live_fleet` combines both into devices, node
by node. `page_server` serves the browser: `access_guard` authorises requests, and the modules named after views render
them.
"""

__all__: list[str] = []
