"""`plugwright up`: the embedded cluster as a program, its state directory and its background process."""
