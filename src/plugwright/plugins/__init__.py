"""Ready-made plugins, each independent of the others; they use only the interfaces available to any author."""
