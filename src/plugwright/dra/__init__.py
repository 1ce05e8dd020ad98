"""The same plugin served by claims: a DRA driver for each resource.

`driver` wires a resource's parts. `slices` and `publisher` put its devices into ResourceSlices, `claims`,
`prepared_claims` and `preparation` prepare claims on this node, `taints` and `health` report devices that fail, `split`
decides which API offers a device.
"""
