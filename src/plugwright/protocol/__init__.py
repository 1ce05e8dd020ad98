"""The wire: the gRPC services between kubelets and plugins, and the kubelet's checkpoint file.

The only home of grpclib and protobuf; all other packages use values of `model` and exceptions of `errors`.
"""
