"""The limit of open files: raised as far as allowed, and compared with the need of the program."""

import resource

from plugwright.errors import ConfigError

__all__ = ["ensure_open_files"]


def ensure_open_files(needed: int, purpose: str) -> None:
    """Raises the soft limit if it is too low; ConfigError if the hard limit is too low for `purpose`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        text = f"{purpose} need about {needed:,} open files, and this process may have {hard:,}"
        raise ConfigError(f"{text}: ask for fewer, or raise the hard limit (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else needed, hard))
