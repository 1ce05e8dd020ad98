"""The command line: one file per command. Only this package reads flags, files and environment variables."""
