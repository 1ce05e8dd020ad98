"""The devices of a cluster or a node with their holders, and the daemons of the nodes.

`daemons` finds the daemon for a command, `cluster_view` reads a cluster and its NodeReports, `fleet_devices` combines
them into devices with their holders, `sums` counts devices. `device_names` completes abbreviated names of devices.
"""

__all__: list[str] = []
