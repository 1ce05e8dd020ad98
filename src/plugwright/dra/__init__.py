"""The same plugin served by claims: a DRA driver for each resource.

`driver` wires a resource's parts: `registration` with the kubelet, `resource_slices` that the scheduler chooses from,
`resource_claims` that are prepared on this node, `device_taints` and `health` for devices that fail, and the
placement of devices: `claims_only` for `serve: dra`, the package `both` for `serve: both`.
"""
