"""The controllers of a controller manager; `controller_manager` runs those following the store.

Owners and their dependents, terminating namespaces, pods without a node, evicting taints, silent nodes.
"""
