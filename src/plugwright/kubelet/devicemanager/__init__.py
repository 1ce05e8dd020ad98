"""The emulated kubelet's device manager, divided as upstream's `pkg/kubelet/cm/devicemanager` is.

`manager` holds the state and wires the rest together. `registration` accepts plugins, `endpoints` talks to them,
`devices` keeps what they list, `pod_devices` what containers hold, `checkpoint` what outlives a restart. `allocation`
serves a container at admission, `container_start` at each of its starts. Topology hints and the order of admission are
left to `topology_manager` and `admission`, one package up.
"""
