"""What tests of several modules need."""

import os

import pytest


@pytest.fixture
def memory():
    """A file in memory, as a launcher gives it to its ranks."""
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)
