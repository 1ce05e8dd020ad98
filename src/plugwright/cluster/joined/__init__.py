"""Emulated nodes that join another API server: its objects as the nodes read them, and their writes on their way."""

__all__: list[str] = []
