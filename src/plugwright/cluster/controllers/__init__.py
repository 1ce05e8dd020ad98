"""What a controller manager does of its own accord: `controller_manager` runs one controller beside the other.

Owners and their dependents, namespaces that end, pods without a node, taints that evict, nodes that stop reporting.
"""
