"""A process without descriptors left, and what it has open."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["inotify_instances", "no_more_file_descriptors"]


@contextmanager
def no_more_file_descriptors() -> Iterator[None]:
    """As when the node's inotify instances are used up."""
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def inotify_instances() -> int:
    return sum("inotify" in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
