"""What a cluster made on this machine, written down before it is made, and how to undo each kind of it.

A process may be killed at any moment, this one too. Whoever comes next reads the journal and undoes, last entry first,
everything in it; undoing what was never made, or is already gone, does nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from testbed.processes import ProcessId
from testbed.waiting import wait_for

#: Where the kernel lists what is mounted; the fifth field of a line is the place.
MOUNTS = Path("/proc/self/mountinfo")


@dataclasses.dataclass(frozen=True, slots=True)
class Journal:
    """An append-only file, one JSON object a line: `{"kind": ..., <what that kind needs to be undone>}`."""

    file: Path

    def record(self, kind: str, **facts: str) -> None:
        """Write down that something of `kind` is about to be made."""
        assert kind in _UNDO, f"there is no way to undo {kind!r}"
        with self.file.open("a") as journal:
            journal.write(json.dumps({"kind": kind, **facts}) + "\n")

    def entries(self) -> Iterator[Mapping[str, str]]:
        """All that was recorded, oldest first."""
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                # The last line can be cut short by a SIGKILL; then what it announces was not made.
                with contextlib.suppress(json.JSONDecodeError):
                    yield json.loads(line)

    def processes(self) -> list[ProcessId]:
        """The processes that were started, whether they live or not."""
        return [ProcessId.from_stat(entry["stat"]) for entry in self.entries() if entry["kind"] == "process"]

    def undo(self) -> None:
        """Undo everything, last first; what fails does not keep the rest from being undone.

        Raises:
            ExceptionGroup: of what could not be undone.
        """
        failures: list[Exception] = []
        for entry in reversed(list(self.entries())):
            try:
                _UNDO[entry["kind"]](entry)
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                failures.append(error)
        if failures:
            raise ExceptionGroup(f"not all of {self.file} could be undone", failures)


def _process(entry: Mapping[str, str]) -> None:
    ProcessId.from_stat(entry["stat"]).kill()


def _control_group(entry: Mapping[str, str]) -> None:
    """Kill everything in a control group and below it, and remove it. This is how containers and their shims go."""
    top = Path(entry["path"])

    def emptied() -> bool:
        groups = [group for group in [*top.rglob("*"), top] if group.is_dir()]
        pids = {int(pid) for group in groups for pid in _lines(group / "cgroup.procs")}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                ProcessId.of(pid).kill()
        for group in sorted(groups, key=lambda group: -len(group.parts)):
            with contextlib.suppress(OSError):
                group.rmdir()
        return not top.exists()

    wait_for(f"the control group {top} to be empty and removed", emptied)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _mounts(entry: Mapping[str, str]) -> None:
    """Unmount everything mounted at or below a folder, innermost first."""
    for target in reversed(_mounted_below(entry["path"])):
        _run("umount", "--lazy", target)
    if left := _mounted_below(entry["path"]):
        raise OSError(f"still mounted: {', '.join(left)}")


def _mounted_below(folder: str) -> list[str]:
    targets = [line.split()[4] for line in MOUNTS.read_text().splitlines()]
    # The kernel writes blanks and backslashes in octal.
    decoded = [target.encode().decode("unicode_escape") for target in targets]
    return [target for target in decoded if target == folder or target.startswith(folder + "/")]


def _folder(entry: Mapping[str, str]) -> None:
    remove_folder(Path(entry["path"]))


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, but never what is mounted there. Raises `OSError` if something is."""
    if mounted := _mounted_below(str(folder)):
        raise OSError(f"{folder} is not removed, because there are mounts in it: {', '.join(mounted)}")
    shutil.rmtree(folder, ignore_errors=True)


def _files(entry: Mapping[str, str]) -> None:
    """Remove the files that a pattern matches, and their folder if that leaves it empty."""
    pattern = Path(entry["pattern"])
    for file in pattern.parent.glob(pattern.name):
        file.unlink()
    _remove_if_empty(pattern.parent)


def _symlinks(entry: Mapping[str, str]) -> None:
    """Remove a folder's symbolic links that lead to somewhere below another, and the folder if that leaves it empty."""
    folder = Path(entry["folder"])
    for link in folder.glob("*"):
        if link.is_symlink() and link.readlink().is_relative_to(entry["into"]):
            link.unlink()
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder that is empty, and its parents that this leaves empty."""
    with contextlib.suppress(OSError):
        for empty in (folder, *folder.parents):
            empty.rmdir()


def _link(entry: Mapping[str, str]) -> None:
    _run("ip", "link", "delete", entry["name"])


def _route(entry: Mapping[str, str]) -> None:
    _run("ip", "route", "delete", "unreachable", entry["destination"])


def _nft_table(entry: Mapping[str, str]) -> None:
    _run("nft", "delete", "table", entry["family"], entry["name"])


def shown_packet_filter() -> str:
    """The rules of the packet filter; empty where iptables is not installed."""
    return _output("iptables-save", "--table", "filter")


def clear_packet_filter(prefix: str) -> None:
    """Remove the chains and the sets of addresses whose names begin with a prefix, and the rules that lead to them.

    Rules that mention the prefix in their comment go as well, and the whole table if nothing else is in it.
    """
    ours = re.compile(rf'^(:|-A |.* -j |.*--comment "){re.escape(prefix)}')
    saved = shown_packet_filter().splitlines()
    kept = [line for line in saved if not ours.match(line)]
    if kept != saved:
        restored = "".join(f"{line}\n" for line in kept)
        subprocess.run(["iptables-restore", "--table", "filter"], input=restored, text=True, check=False, timeout=240)
        if not any(line.startswith("-A ") for line in kept):
            _nft_table({"family": "ip", "name": "filter"})
    for name in _output("ipset", "list", "-name").split():
        if name.startswith(prefix):
            _run("ipset", "destroy", name)


def _packet_filter(entry: Mapping[str, str]) -> None:
    clear_packet_filter(entry["prefix"])


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240).stdout
    except FileNotFoundError:
        return ""


def _sysctl(entry: Mapping[str, str]) -> None:
    Path(entry["path"]).write_text(entry["before"])


def _run(*command: str) -> None:
    """Run and ignore the exit code: what was to be removed may never have been made."""
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(command, check=False, capture_output=True, timeout=240)


_UNDO: Mapping[str, Callable[[Mapping[str, str]], None]] = {
    "process": _process,
    "control group": _control_group,
    "mounts": _mounts,
    "folder": _folder,
    "files": _files,
    "symlinks": _symlinks,
    "link": _link,
    "route": _route,
    "nft table": _nft_table,
    "sysctl": _sysctl,
    "packet filter": _packet_filter,
}
