"""Which object a recipe's name means. Importable without torch, so that a wrong name fails before torch loads."""

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from ddpjob_ranks.errors import ConfigError

#: The group of entry points by which installed packages give their recipes short names.
GROUP = "ddpjob.recipes"


@cache
def short_names() -> dict[str, str]:
    """`module:object` of each recipe that has a short name. A package cannot give a built-in name another meaning.

    The built-in names are imported by the name of their package, because recipes import the trainer.
    """
    built_in: dict[str, str] = import_module("ddpjob_recipes").NAMES
    installed = {point.name: point.value for point in entry_points(group=GROUP)}
    return dict(sorted((installed | built_in).items()))


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
