"""Short names for long content, the same on every start.

Not hashlib's: that loads OpenSSL, 3.5 MiB in a daemon that has no other use for it. Nobody from outside chooses what is
named here, so that checksums are enough to tell contents apart.
"""

import zlib
from collections.abc import Iterable

__all__ = ["digest"]


def digest(texts: Iterable[str], size: int = 16) -> str:
    """`size` hexadecimal digits; the order of the texts does not matter."""
    content = "\n".join(sorted(texts)).encode()
    words = (zlib.crc32(content[::-1] if seed % 2 else content, seed + 1) for seed in range(-(-size // 8)))
    # A checksum of a longer text by its own result: words of equal seeds would differ by a constant.
    return "".join(f"{zlib.crc32(f'{word}/{seed}'.encode() + content):08x}" for seed, word in enumerate(words))[:size]
