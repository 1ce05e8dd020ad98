"""placeholder"""

TITLES: tuple[str, ...] = ()
