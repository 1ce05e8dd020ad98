"""The contract of device plugins: rules, and how any plugin is verified by them.

Knows nothing of the SDK: a plugin is a program, in any language, that talks to a kubelet over sockets.
"""
