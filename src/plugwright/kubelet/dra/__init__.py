"""The emulated kubelet's DRA manager: drivers that register, and the ResourceClaims of pods that they prepare.

It never allocates: that is the scheduler's work, and here the harness's. When the real kubelet asks its API server, it
asks a `KubeClient`.
"""
