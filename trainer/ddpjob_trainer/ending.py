"""How a rank ends: the report of the run, the evidence file, and the termination message with the right exit code."""

import os
import signal
import sys
import traceback
from typing import NoReturn

from ddpjob_ranks import contract, distributed, termination
from ddpjob_ranks.errors import ConfigError, ShortageError
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.watch import evidence, limiter
from ddpjob_ranks.watch.watchdog import Watchdog
from ddpjob_session.checkpoints.claim import Fenced
from ddpjob_trainer import replicas
from ddpjob_trainer.loop import Training


def report_end(training: Training, *, complete: bool) -> None:
    """Report where the time went and the result, and write the evidence file. All ranks take part."""
    gang, report, config = training.gang, training.report, training.config
    ranks = gang.all_gather(limiter.spent(training.timeline, gang.device))
    hardware = gang.all_gather(evidence.hardware(gang.device))
    if gang.rank != 0:
        return
    if training.timeline.num_steps:
        report.say(limiter.report(ranks))
    digest = replicas.model_digest(training.state.model)
    if complete:
        report.say(f"weights sha256 {digest}")
        report.end()
    path = evidence.write(
        training.timeline,
        os.environ,
        complete=complete,
        config=config.model_dump(by_alias=True),
        seed=config.seed,
        world_size=gang.world_size,
        hardware=hardware,
        first_step=report.first_step,
        last_step=training.state.step,
        accuracy_by_step=report.accuracies,
        weights_sha256=digest,
        time_shares=limiter.shares(ranks),
    )
    if path is not None:
        report.say(f"evidence in {path}")


def stopped(training: Training) -> int:
    """The exit code of a run that was asked to stop. All ranks have left the group, so rank 0's checkpoint is complete."""
    step = training.state.step
    if training.checkpoints is None:
        training.report.say(f"stopped on request after step {step}; nothing is saved")
        return contract.EXIT_TERMINATED
    training.report.say(f"stopped on request after step {step}; the checkpoint of it is complete")
    if training.gang.rank == 0:
        termination.write(f"{contract.TERMINATION_CHECKPOINT_PREFIX}{step}", echo=False)
    return contract.EXIT_CHECKPOINTED


def fail(error: BaseException, worker: Worker, watchdog: Watchdog, training: Training | None = None) -> NoReturn:
    """Report the error and exit without the usual teardown, which would wait for ranks that may be gone.

    Only a checkpoint in progress is waited for, since the next attempt resumes from it.

    The message is written before this process's connections close, so no other rank can fail because of them earlier.
    """
    own = isinstance(error, ConfigError | Fenced | ShortageError)
    echo = not own and (watchdog.aborted_collectives or distributed.is_peer_loss(error))
    code, text = contract.EXIT_PROGRAM_ERROR, termination.of_exception(error, rank=worker.rank, echo=echo)
    if own:
        if isinstance(error, ConfigError):
            code = contract.EXIT_BAD_CONFIG
        elif isinstance(error, Fenced):
            code = contract.EXIT_FENCED
        text = f"rank {worker.rank}\n{error}"
        print(error, file=sys.stderr)
    else:
        traceback.print_exception(error)
    if echo:
        code = contract.EXIT_PEER_LOST
        if lost := watchdog.find_lost_rank():
            text = f"rank {worker.rank}{contract.TERMINATION_ECHO_SUFFIX}\n{lost}"
        print(f"rank {worker.rank}: lost a peer; {lost or 'the cause is on another rank'}", file=sys.stderr)
    elif isinstance(error, KeyboardInterrupt):
        code = 128 + signal.SIGINT
    elif distributed.is_out_of_memory(error):
        code = contract.EXIT_OUT_OF_MEMORY
    if not echo:
        watchdog.report_failure("".join(traceback.format_exception_only(error)).strip())
    termination.write(text, echo=echo)
    if training is not None and not isinstance(error, Fenced):
        training.writer.linger()
    leave(code)


def leave(code: int) -> NoReturn:
    """Exit at once: the interpreter's own exit would wait for threads, such as the one that decodes images ahead."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
