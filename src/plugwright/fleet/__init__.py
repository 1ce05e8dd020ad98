"""Every device of a cluster or a node: who holds it and which are free; and the daemons of its nodes.

`daemons` finds the daemon that a command is for, `cluster_view` reads a cluster and its NodeReports, `fleet_devices`
makes devices with their holders of both, `sums` counts them. `device_names` completes what a person writes of a
device's name.
"""

__all__: list[str] = []
