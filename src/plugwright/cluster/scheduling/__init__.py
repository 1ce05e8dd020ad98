"""The scheduler: `scheduler` takes pods from `scheduling_queue` and binds each to the node that is ranked first.

`fit` counts resources, `pod_filters` the other reasons against a node; `resource_claims` allocates devices to claims.
"""
