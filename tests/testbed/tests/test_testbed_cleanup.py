"""However the owner of a cluster ends, nothing of the cluster is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import wait_for
from testbed.instance import Instance, InstanceError, instances
from testbed.processes import ProcessId

TESTS = Path(__file__).parents[2]

OWNER = """
import sys
from testbed.instance import Instance
from testbed.processes import Component

instance = Instance.create(sys.argv[1])
for name in ("one", "two"):
    Component(
        name=name,
        command=["sleep", "600"],
        log=instance.folder / name,
        journal=instance.journal.file,
        ready=lambda: len(instance.journal.processes()) > 0,
    ).start()
print(instance._guard.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_CACHE_DIR", str(tmp_path))


@pytest.fixture
def owner() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that owns the instance "owned" with two components, and the process id of its guard."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, "owned"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    guard = int(process.stdout.readline())
    yield process, guard
    process.kill()
    process.communicate()
    Instance("owned").remove()


def components(instance: Instance) -> list[ProcessId]:
    def both() -> list[ProcessId] | None:
        found = instance.journal.processes()
        return found if len(found) == 2 and all(process.alive for process in found) else None

    return wait_for("both components to run", both)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_instance_ends_when_its_owner_is_killed(
    owner: tuple[subprocess.Popen[str], int], how: signal.Signals
) -> None:
    process, _ = owner
    instance = Instance("owned")
    running = components(instance)
    process.send_signal(how)
    process.wait()
    wait_for("the guard to clean up", lambda: not instance.folder.exists())
    assert not any(component.alive for component in running)


def test_the_next_start_removes_an_instance_whose_owner_and_guard_were_killed(
    owner: tuple[subprocess.Popen[str], int],
) -> None:
    process, guard = owner
    instance = Instance("owned")
    running = components(instance)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.wait()
    assert all(component.alive for component in running)
    assert not instance.alive

    successor = Instance.create("successor")
    try:
        assert [other.name for other in instances()] == ["successor"]
        assert not any(component.alive for component in running)
    finally:
        successor.remove()


def test_the_next_start_leaves_an_instance_with_a_live_owner_alone(owner: tuple[subprocess.Popen[str], int]) -> None:
    assert owner
    running = components(Instance("owned"))
    Instance.create("neighbour").remove()
    assert all(component.alive for component in running)
    with pytest.raises(InstanceError, match="is running"):
        Instance.create("owned")
