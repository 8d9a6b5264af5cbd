"""The root of the test bed's own exceptions: what can go wrong without a fault in its code."""

from __future__ import annotations


class TestbedError(RuntimeError):
    """Something on this machine or in the cluster is not as needed; the text says what, and what to do."""

    # Pytest otherwise takes it for a class of tests.
    __test__ = False
