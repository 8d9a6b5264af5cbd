"""A module that is not installed."""

import module_that_nobody_has  # noqa: F401
