"""The limit of open files: raised as far as a program may, and compared with what it will need."""

import resource

from plugwright.errors import ConfigError

__all__ = ["ensure_open_files"]


def ensure_open_files(needed: int, purpose: str) -> None:
    """Raises the soft limit if it is lower; ConfigError if even the hard one is: `purpose` needs that many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        text = f"{purpose} need about {needed:,} open files, and this process may have {hard:,}"
        raise ConfigError(f"{text}: ask for fewer, or raise the hard limit (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else needed, hard))
