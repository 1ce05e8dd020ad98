"""The taints of devices that fail or are cordoned, within a budget."""
