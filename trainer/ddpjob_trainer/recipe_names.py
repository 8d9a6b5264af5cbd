"""Which object a recipe's name means. Importable without torch, so that a wrong name fails before torch loads."""

import importlib

from ddpjob_ranks.errors import ConfigError


def locate(name: str) -> tuple[str, str]:
    """The module and the object in it: of a built-in recipe by its short name, of any other by `module:object`.

    Raises:
        ConfigError: there is no built-in recipe of that name.
    """
    # The recipes import this package, never the other way round.
    built_in: dict[str, str] = importlib.import_module("ddpjob_recipes").BUILT_IN
    if ":" not in name and name not in built_in:
        raise ConfigError(
            f"config: recipe is {name!r}; expected one of {', '.join(built_in)}, or module:object for a recipe of your own"
        )
    module, _, attribute = built_in.get(name, name).partition(":")
    return module, attribute
