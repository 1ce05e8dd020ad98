"""Emulated nodes of another API server: the objects they read, and their pending writes."""

__all__: list[str] = []
