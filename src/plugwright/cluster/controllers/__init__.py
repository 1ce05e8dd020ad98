"""The controllers of a controller manager, all run by `controller_manager`.

Owners and their dependents, terminating namespaces, pods without a node, evicting taints, silent nodes.
"""
