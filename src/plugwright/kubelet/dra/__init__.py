"""The emulated kubelet's DRA manager: registered drivers, and the pods' ResourceClaims prepared by them.

It never allocates, which is the scheduler's work, and here the harness's. When the real kubelet asks its API server, it
asks a `KubeClient`.
"""
