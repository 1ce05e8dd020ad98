"""The wire: the gRPC services between kubelets and plugins, and the kubelet's checkpoint file.

HTTP/2 and gRPC are our own: `http2`, `grpc`, `transport`. The only home of protobuf; all other packages use values of
`model` and exceptions of `errors`.
"""
