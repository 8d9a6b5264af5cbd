"""A pytest plugin: the files whose tests took longest the last time start first.

With processes that take one file each, the last file to end determines the time of a run. The seconds of each file are kept
in the cache folder; the main process gives them to all others, since all must have the same order.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest


class LongestFirst:
    """Sorts files by their seconds, and keeps the seconds of this run.

    Attributes:
        record: the file that keeps the seconds.
    """

    def __init__(self, record: Path) -> None:
        self.record = record
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give the seconds to a process of pytest-xdist."""
        node.workerinput["seconds_of_files"] = self._recorded()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Order the tests of a parallel run, those of one file as before; files without seconds, which are new, come first."""
        if (seconds := getattr(config, "workerinput", {}).get("seconds_of_files")) is not None:
            items.sort(key=lambda item: -seconds.get(_file(item.nodeid), float("inf")))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the seconds of a set-up, a test or a tear-down."""
        self._seconds[_file(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep the seconds of files that ran whole, if this is the main process."""
        chosen = (
            session.config.getoption("keyword")
            or session.config.getoption("lf", default=False)
            or "::" in " ".join(session.config.args)
        )
        if hasattr(session.config, "workerinput") or chosen:
            return
        self.record.parent.mkdir(parents=True, exist_ok=True)
        merged = self._recorded() | {file: round(seconds, 1) for file, seconds in self._seconds.items()}
        new = self.record.with_suffix(f".{id(self)}")
        new.write_text(json.dumps(merged, indent=0, sort_keys=True), encoding="utf-8")
        new.replace(self.record)

    def _recorded(self) -> dict[str, float]:
        try:
            found: dict[str, float] = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # the first run, or an interrupted one
            return {}
        return found


def _file(node_id: str) -> str:
    return node_id.partition("::")[0]
