"""What tests of several modules need."""

from support.gang_of_one import gang

__all__ = ["gang"]
