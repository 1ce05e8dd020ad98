"""The command line: one file per command. Flags, files and environment variables are read here alone."""
