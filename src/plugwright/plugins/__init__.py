"""Ready-made plugins, each independent of the others; they see what any author sees."""
