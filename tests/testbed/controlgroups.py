"""Control groups of a cluster: everything its nodes run is in one, so nothing of it can hide from the clean-up."""

from __future__ import annotations

from pathlib import Path

from testbed.journal import Journal


def hierarchies() -> list[Path]:
    """Where control groups are mounted: one place on version 2, one per controller on version 1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(mount[1]) for mount in mounts if mount[2] in ("cgroup", "cgroup2")]


def create(journal: Journal, group: str) -> None:
    """Make the group `group` in every hierarchy; its top folder is in the journal first."""
    for hierarchy in hierarchies():
        journal.record("control group", path=str(hierarchy / Path(group).parts[0]))
        (hierarchy / group).mkdir(parents=True, exist_ok=True)


def of_processes(group: str) -> list[Path]:
    """The folders that a process joins to be in `group`: one is enough to find it again."""
    # On version 1 cpuset refuses processes until it is configured; freezer and pids never do.
    wanted = [hierarchy for hierarchy in hierarchies() if hierarchy.name in ("pids", "freezer")]
    return [hierarchy / group for hierarchy in (wanted or hierarchies())[:1]]
