"""Which object a recipe's name means. Importable without torch, so that a wrong name fails before torch loads."""

import sys
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from ddpjob_ranks.errors import ConfigError

#: The group of entry points that give recipes short names: the built-in ones, and those of installed packages.
GROUP = "ddpjob.recipes"


@cache
def short_names() -> dict[str, str]:
    """`module:object` of each recipe that has a short name.

    The directory of this package is no entry of sys.path where a checkout is installed in editable mode.
    """
    found = distributions(path=[*sys.path, str(Path(__file__).parents[1])])
    names = {point.name: point.value for each in found for point in each.entry_points if point.group == GROUP}
    return dict(sorted(names.items()))


def locate(name: str) -> tuple[str, str]:
    """The module and the object in it: of a recipe with a short name by that, of any other by `module:object`.

    Raises:
        ConfigError: there is no recipe of that name.
    """
    if ":" not in name and name not in short_names():
        known = ", ".join(short_names())
        raise ConfigError(
            f"config: recipe is {name!r}; expected one of {known}, or module:object for a recipe of your own"
        )
    module, _, attribute = short_names().get(name, name).partition(":")
    return module, attribute
