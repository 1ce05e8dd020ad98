"""`plugwright kubelet` as a program around `plugwright.kubelet`.

`command` has the flags, `program` the node around the kubelet (a scheduler that waits for resources and a runtime that
starts processes), `pod_files` the pods and claims in YAML, `driver_api` the API of DRA drivers, `view` the output.
"""
