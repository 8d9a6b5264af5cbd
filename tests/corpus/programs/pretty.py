"""An exception that a library shows in frames and colours; argv[1] names it."""

import sys


def train(label: int) -> None:
    """Fail."""
    raise ValueError(f"label {label} is out of range for 10 classes")


match sys.argv[1]:
    case "rich":
        from rich.traceback import install

        install(show_locals=True, width=100)
        train(12)
    case "rich_handler":
        import logging

        from rich.logging import RichHandler

        logging.basicConfig(handlers=[RichHandler(rich_tracebacks=True)])
        try:
            train(12)
        except ValueError:
            logging.exception("training failed")
            sys.exit(1)
    case "loguru":
        from loguru import logger

        logger.remove()
        logger.add(sys.stderr, colorize=len(sys.argv) > 2, backtrace=True, diagnose=True)
        with logger.catch(reraise=False, onerror=lambda _: sys.exit(1)):
            train(12)
    case "plain":
        train(12)
