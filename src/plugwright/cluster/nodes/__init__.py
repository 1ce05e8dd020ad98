"""Emulated nodes: `node` is an emulated kubelet with its Node object, `node_pods` has a `pod_worker` for each pod.

Pods run only in their status, or as processes (`pod_processes`) with their environment and volumes.
"""
