"""The contract of device plugins: rules, and the verification of any plugin by them.

Independent of the SDK: a plugin is a program, in any language, that talks to a kubelet over sockets.
"""
