"""The life of a job from `kubectl apply` to its end, as golden files: read `lives/succeeds.txt` first, then `lives/restarts.txt`.

Each line is a change of an object of the API server: seconds since the job was applied, who changed it, and what the change
changed. The operator is the real one; the API server, scheduler, kubelets and training programs are those of the
simulation, whose requests all take the same time here so that only a change of the operator's behaviour changes a file.
"""

import re
from pathlib import Path

import pytest

from simulation.containers import Fate
from simulation.runner import traced
from simulation.schedule import Schedule
from support import golden

LIVES: dict[str, tuple[Fate, ...]] = {
    "succeeds": (),
    "restarts": (Fate(kind="fail", after_seconds=20, rank=1),),
}


@pytest.mark.usefixtures("constant_delays")
@pytest.mark.parametrize("life", LIVES)
def test_the_life_of_a_job_is_the_one_in_its_golden_file(life: str) -> None:
    schedule = Schedule(nodes=2, trainer=True, train_seconds=30, reads_progress=True, fates=LIVES[life])
    lines = [line for line in traced(schedule).splitlines() if "  --- " not in line]
    assert "VIOLATION" not in lines[-1]
    without_versions = re.sub(r" \([a-z]+-uid-\d+, v\d+\)", "", "\n".join(lines))
    golden.check(Path(__file__).parent / "lives" / f"{life}.txt", without_versions)
