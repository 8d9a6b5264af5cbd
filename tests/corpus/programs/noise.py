"""An exception, and after it the noise of a shutdown; argv[1] names its source."""

import atexit
import logging
import sys
import threading
import time


class Loader:
    """An object that cannot be deleted."""

    def __del__(self) -> None:
        """Fail."""
        raise AssertionError("can only test a child process")


def close() -> None:
    """Fail."""
    raise RuntimeError("the run has been closed")


def train() -> None:
    """Fail in the way that matters."""
    raise ValueError("label 12 is out of range for 10 classes")


match sys.argv[1]:
    case "del":
        loader = Loader()
        train()
    case "atexit":
        atexit.register(close)
        train()
    case "finally":
        try:
            train()
        finally:
            close()
    case "thread":  # it ends last, since the interpreter waits for it
        threading.Thread(target=lambda: (time.sleep(0.5), close())).start()
        train()
    case "thread_first":
        threading.Thread(target=close).start()
        time.sleep(0.5)
        train()
    case "logging":
        logging.basicConfig()
        atexit.register(lambda: logging.warning("%d steps", "many"))
        train()
    case "excepthook":

        def hook(*_: object) -> None:
            """Fail."""
            close()

        sys.excepthook = hook
        train()
