"""Objects in the place of those of any type."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Any as Fake
else:
    #: Base of a class whose objects are given to code that uses no more than it has. mypy takes them for any type.
    Fake = object

__all__ = ["Fake", "fake"]


def fake(**attributes: Any) -> Any:
    """An object with these attributes, for code that uses no others."""
    return SimpleNamespace(**attributes)
