"""The emulated kubelet: the device manager's half of the device-plugin system, without a cluster around it."""
