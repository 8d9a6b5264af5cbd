"""An exception in the record of a logger, or in lines with a prefix; argv[1] says which."""

import logging
import sys
import time
import traceback


def train(label: int) -> None:
    """Fail."""
    raise ValueError(f"label {label} is out of range for 10 classes")


def log_structlog(*processors: object) -> None:
    """Log the exception in JSON."""
    import structlog

    structlog.configure(
        processors=[structlog.processors.add_log_level, *processors, structlog.processors.JSONRenderer()]
    )
    structlog.get_logger().exception("training failed", step=3)


def print_after(prefix: str) -> None:
    """Print the traceback as what runs a program prints it, with a prefix of each line."""
    for line in traceback.format_exc().splitlines():
        print(time.strftime(prefix) + line, file=sys.stderr)


try:
    train(12)
except ValueError:
    match sys.argv[1]:
        case "structlog":
            import structlog

            log_structlog(structlog.processors.format_exc_info)
        case "structlog-fields":
            import structlog

            log_structlog(structlog.processors.dict_tracebacks)
        case "json-logger":
            from pythonjsonlogger.json import JsonFormatter

            handler = logging.StreamHandler()
            handler.setFormatter(JsonFormatter())
            logging.basicConfig(handlers=[handler])
            logging.exception("training failed")
        case "loguru":
            from loguru import logger

            logger.remove()
            logger.add(sys.stderr, serialize=True)
            logger.exception("training failed")
        case "srun":
            print_after("1: ")
        case "mpirun":
            print_after("[1,1]<stderr>:")
        case "times":
            print_after("%Y-%m-%d %H:%M:%S ERROR stderr: ")
    sys.exit(1)
