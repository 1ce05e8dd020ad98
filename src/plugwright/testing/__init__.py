"""For the tests of plugin authors: an emulated kubelet around their plugin, and pods to ask it for devices."""

__all__: list[str] = []
