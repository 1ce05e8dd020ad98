"""Emulated nodes that join another API server: the objects that they read, and their pending writes."""

__all__: list[str] = []
