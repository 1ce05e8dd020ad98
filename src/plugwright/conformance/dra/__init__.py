"""The rules for DRA drivers: sessions with an API server beside the emulated kubelet, and claims for their devices.

The API server is `observed_node.ObservedNode`, in the process of the rules.
"""
