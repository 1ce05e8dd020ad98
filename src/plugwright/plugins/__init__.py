"""Ready-made plugins, each ignorant of the others; they see what any author sees."""
