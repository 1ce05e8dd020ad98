"""An emulated kubelet without a cluster, as a program: the node around it, its pods, and a plugin under development."""
