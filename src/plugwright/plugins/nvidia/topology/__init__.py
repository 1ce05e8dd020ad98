"""Which GPUs go well together: from the links between them to the best set. Its modules are the interface."""
