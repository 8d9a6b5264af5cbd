"""The table that is printed and the JSON next to it, with all that a figure depends on."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.operators.api import Api
from bench.operators.measures import Row, Sizes


async def surroundings(api: Api, operator: str) -> dict[str, Any]:
    """Versions, machine, load and date."""
    return {
        "operator": operator,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        **machine(),
        "kubernetes": (await api.send("GET", "/version"))["gitVersion"],
        "python": platform.python_version(),
        "kubernetes_client": version("kubernetes"),
        **{package: version(package) for package in ("kopf", "aiohttp", "pydantic")},
    }


def machine() -> dict[str, Any]:
    """The hardware."""
    cpu = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory_kib = re.findall(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory_kib[0]) / 2**20),
    }


def table(facts: dict[str, Any], rows: Sequence[Row]) -> str:
    """Markdown: the surroundings, then one line for each measure."""
    lines = [", ".join(f"{name} {value}" for name, value in facts.items()), ""]
    lines += ["| measure | value | aim | remark |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.measure} | {_number(row.value)} {row.unit} | {row.aim} | {row.remark} |" for row in rows]
    return "\n".join(lines) + "\n"


def save(folder: Path, name: str, facts: dict[str, Any], sizes: Sizes, rows: Sequence[Row]) -> None:
    """Write `<name>.md` and `<name>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(table(facts, rows))
    record = {"surroundings": facts, "sizes": asdict(sizes), "rows": [asdict(row) for row in rows]}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
