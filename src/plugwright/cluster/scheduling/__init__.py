"""The scheduler: `scheduler` takes pods from `scheduling_queue` and binds each to the highest ranked node.

`fit` counts resources, `pod_filters` applies other filters; `resource_claims` allocates devices to claims.
"""
