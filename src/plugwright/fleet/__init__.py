"""The daemons of a cluster's nodes and their devices.

`daemons` finds the daemon that a command is for, `device_names` completes what a person writes of a device's name.
"""

__all__: list[str] = []
