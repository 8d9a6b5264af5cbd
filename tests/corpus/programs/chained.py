"""Chained exceptions; argv[1] says how they are chained."""

import sys


def find() -> object:
    """Fail for the cause."""
    return {"lr": 0.1}["momentum"]


match sys.argv[1]:
    case "from":
        try:
            find()
        except KeyError as error:
            raise ValueError("the configuration is incomplete") from error
    case "while_handling":
        try:
            find()
        except KeyError:
            raise ValueError("the configuration is incomplete")  # noqa: B904 - what many programs do
