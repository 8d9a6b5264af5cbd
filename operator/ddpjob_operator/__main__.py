"""`python -m ddpjob_operator`: read the command line, set up logging, run."""

import asyncio
import json
import logging
import sys
import time

from ddpjob_operator.app import run
from ddpjob_operator.settings import Settings, settings_from

#: The API server accepts objects nested 10,000 deep; one that cannot be read here would end the process at each start.
JSON_DEPTH = 20_000


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a message about a job has its fields: namespace, name, and where known attempt and reason."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a message."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= vars(record).get("job", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _set_up_logging(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level, handlers=[handler])


def main() -> None:
    """Run the operator until a signal stops it."""
    settings = settings_from(sys.argv[1:])
    sys.setrecursionlimit(JSON_DEPTH)
    _set_up_logging(settings)
    sys.exit(asyncio.run(run(settings)))


if __name__ == "__main__":
    main()
