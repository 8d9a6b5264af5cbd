"""How long a training needs from SIGKILL of a rank to the next step that is done, by what starts its ranks again.

Two ranks train the digits on this machine, without containers:

- `tier 1`: `ddpjob run --local` with `restart.inPlace`, whose ranks start again in their pods.
- `tier 2`: launchers as in two pods. The one of rank 1 is killed with its rank, and another one starts at the same moment, as if a
  container cost nothing.
- `tier 3`: `ddpjob run --local` without it, whose gang starts again.
- `torchrun`: one elastic agent with two ranks (`--standalone --max-restarts`), which restarts both of them.

Trials are interleaved, so that other load on the machine meets all of them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from bench.recovery.training import GOES_ON, KILL_AT_STEP, Training, Trial, compare, parser_of
from ddpjob_ranks import contract
from testbed import free_ports

WHERE = "The digits on two ranks of one machine; `hack/bench/recovery/__main__.py` says what each row is."
#: At the step at which the rank is killed, 5 steps are in no checkpoint.
CHECKPOINT_EVERY_STEPS = 55
#: 400 epochs are far more than a trial takes.
TRAINER = {"recipe": "digits", "epochs": 400, "logEverySteps": 1}
KEYS = {**TRAINER, "checkpointEverySteps": CHECKPOINT_EVERY_STEPS}
COMMAND = ["-m", "ddpjob_trainer", *(part for key, value in KEYS.items() for part in ("--set", f"{key}={value}"))]


def local(training: Training, *, in_place: bool) -> Callable[[], None]:
    """`ddpjob run --local`; returns what kills rank 1."""
    volume = {"persistentVolumeClaim": {"claimName": "checkpoints"}}
    training.run_local(
        trainer=TRAINER,
        checkpoint={"everySteps": CHECKPOINT_EVERY_STEPS, "volume": volume},
        restart={"inPlace": in_place, "maxRestarts": 3},
    )
    return training.kill_rank_1


def torchrun(training: Training) -> Callable[[], None]:
    """One elastic agent; returns what kills rank 1."""
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=3", *COMMAND]
    checkpoints = {contract.DDPJOB_CHECKPOINT_DIR: str(training.folder / "checkpoints")}
    training.start([sys.executable, "-m", "torch.distributed.run", *options], **checkpoints)
    return training.kill_rank_1


def launchers(training: Training) -> Callable[[], None]:
    """A launcher for each rank; returns what kills that of rank 1, and its rank with it, and starts another one."""
    (port,) = free_ports(1)
    variables = {
        contract.WORLD_SIZE: "2",
        contract.LOCAL_RANK: "0",
        contract.LOCAL_WORLD_SIZE: "1",
        contract.MASTER_ADDR: "127.0.0.1",
        contract.MASTER_PORT: str(port),
        contract.DDPJOB_UID: "bench",
        contract.DDPJOB_ATTEMPT: "1",
        contract.DDPJOB_IN_PLACE_RESTARTS: "3",
        contract.DDPJOB_REPLACEMENT_SECONDS: "200",
    }
    command = [sys.executable, *COMMAND]
    training.start(command, **variables, RANK="0")
    second = training.start(command, "second.log", **variables, RANK="1")
    third = variables | {contract.RANK: "1", contract.NODE_RANK: "1", contract.DDPJOB_REPLACEMENTS: "1:1"}

    def replace() -> None:
        second.kill()
        training.start(command, "third.log", **third)

    return replace


WAYS: Mapping[str, Callable[[Training], Callable[[], None]]] = {
    "tier 1": lambda training: local(training, in_place=True),
    "tier 2": launchers,
    "tier 3": lambda training: local(training, in_place=False),
    "torchrun": torchrun,
}


def trial(way: str) -> Trial:
    """Start a training, kill rank 1, and wait for the next step."""
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as name, ExitStack() as stack:
        training = Training(Path(name), stack)
        kill = WAYS[way](training)
        training.wait_for_step(KILL_AT_STEP)
        before = len(training.text())
        killed_at = time.monotonic()
        kill()
        match = training.wait_for(GOES_ON, after=before)
        return Trial.of(time.monotonic() - killed_at, training.text()[: match.start()], int(match[1]))


if __name__ == "__main__":
    sys.exit(compare(parser_of("bench.recovery", __doc__, "recovery", WAYS).parse_args(), WHERE, trial))
