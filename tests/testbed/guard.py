"""Cleans up after an owner that died: `python -m testbed.guard NAME`, with the owner's pipe as standard input."""

from __future__ import annotations

import sys

from testbed.instance import DONE, Instance


def main() -> None:
    """Wait for the pipe to close; unless the owner said that it is done, remove its instance."""
    if sys.stdin.buffer.read() != DONE:
        Instance(sys.argv[1]).remove()


if __name__ == "__main__":
    main()
