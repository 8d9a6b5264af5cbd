"""What all unit tests need."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a test sets for its process, as a rank does that meets the others, no later test finds."""
    with mock.patch.dict(os.environ):
        yield
