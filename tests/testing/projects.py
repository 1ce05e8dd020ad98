"""Other people's projects in a test: pytest there has the plugins that an author has, and not ours for development."""

import sys

__all__ = ["PYTEST"]

_OURS = ("anyio", "cacheprovider", "hypothesispytest", "timeout", "xdist", "xdist.looponfail")
PYTEST = (sys.executable, "-m", "pytest", *(word for name in _OURS for word in ("-p", f"no:{name}")))
