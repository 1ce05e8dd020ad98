"""`python -m plugwright.allocator`: one question per line on stdin, one answer per line on stdout."""

import sys

from plugwright.allocator.questions import answer_line

__all__ = ["main"]

_USAGE = """usage: python -m plugwright.allocator < questions.jsonl

Reads one JSON object per line and writes one line per object: the results of the allocation, or reasons, an error or
an unsupported feature. docs/allocator.md describes the objects."""


def main() -> int:
    if len(sys.argv) > 1:
        print(_USAGE, file=sys.stdout if sys.argv[1] in ("-h", "--help") else sys.stderr)
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    for line in sys.stdin.buffer:
        if line.strip():
            sys.stdout.buffer.write(answer_line(line) + b"\n")
            sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
