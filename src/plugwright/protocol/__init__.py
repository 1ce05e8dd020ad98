"""The wire: what kubelets and plugins say to each other, and the file the kubelet keeps.

The only home of grpclib and protobuf; everyone else speaks `model` values and `errors`.
"""
