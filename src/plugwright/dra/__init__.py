"""The same plugin served by claims: a DRA driver for each resource.

`driver` connects a resource's parts: `registration` with the kubelet, `resource_slices` from which the scheduler
chooses, `resource_claims` prepared on this node, `device_taints` and `health` for failing devices, and the placement of
devices: `claims_only` for `serve: dra`, the package `both` for `serve: both`.
"""
