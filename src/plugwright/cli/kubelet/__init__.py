"""`plugwright kubelet` as a program around `plugwright.kubelet`.

`command` has the flags, `program` the node around the kubelet (a scheduler that waits for resources and a runtime that
starts processes), `pod_files` the pods and claims in YAML, `pod_claims` the claims of pods, `view` the output.
"""
