"""The ResourceSlices of a driver: the devices in them, and their publication."""
