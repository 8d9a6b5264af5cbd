"""One rank of a training, whatever is trained: from the start of its process to its exit code.

`Session` for users' scripts and the built-in training are both made of it.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from ddpjob_ranks import checks, contract, distributed, generation, inspection, termination
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.stop import StopAgreement, StopRequest
from ddpjob_ranks.watch import evidence, limiter
from ddpjob_ranks.watch.timeline import Phase, Timeline, open_events, process_began
from ddpjob_ranks.watch.watchdog import Watchdog
from ddpjob_session import ending, observers, shared_state, step_trace
from ddpjob_session.checkpoints import folder
from ddpjob_session.checkpoints.snapshot import HostCopy
from ddpjob_session.checkpoints.writer import CheckpointWriter
from ddpjob_session.memory import at_exit
from ddpjob_session.memory.at_exit import MemoryAtExit
from ddpjob_session.memory.periodic import PeriodicMemory
from ddpjob_session.memory.state_memory import StateMemory
from ddpjob_session.progress import NO_RESTARTS, InPlaceRestarts
from ddpjob_session.report import Reporter
from ddpjob_session.state import State, load_own
from ddpjob_session.step_trace import StepTrace

if TYPE_CHECKING:
    from ddpjob_session.compiler_watch import CompilerWatch


class Run:
    """This rank among the others, and what it needs around its steps: checkpoints, stop agreement, reports.

    `restore` comes first, after `find` where that is needed, and `begin` right before the first step; only then can the other methods be called.
    """

    def __init__(
        self,
        gang: Gang,
        report: Reporter,
        timeline: Timeline | None = None,
        watchdog: Watchdog | None = None,
        *,
        keep: int = 3,
    ) -> None:
        """`keep` is how many checkpoints to keep in the place that the environment names, if it names one."""
        self.gang = gang
        self._watchdog = watchdog
        self.report = report
        self.timeline = timeline or Timeline()
        self.checkpoints = folder.from_environment(os.environ, keep=keep, report=report.say)
        self.resumed = False
        """Whether the state is that of an earlier process."""
        self.complete = False
        """Whether the training has come to its end, on all ranks."""
        self._from_memory = False
        mine = self.checkpoints if gang.rank == 0 else None
        self.writer = CheckpointWriter(
            mine, report, gang.device, is_wrong=self.has_lost_collectives, moved=self.keep_alive
        )
        self.stop: StopAgreement
        self._newest: folder.Manifest | None = None  # on rank 0: what was read
        self._found: dict[str, Any] | None = None  # until it is loaded
        self._generation = generation.current(os.environ)  # where the launcher can start ranks again in place
        if self._generation is not None:
            self._generation.before_exit = self.writer.linger  # the ranks may start again from that checkpoint
        self._memory: StateMemory | None = None  # where it is to keep their state, too
        self._gradients_kept = False  # from one step to the next, ever
        self._trace: StepTrace | None = None
        self._compiler: CompilerWatch | None = None

    def find(self, state: State) -> None:
        """Find the newest state that a rank had in memory, or else the newest checkpoint, read by rank 0, on all ranks.

        `found_step` is then the number of steps that it holds. Of `state` nothing changes until `restore`. The folder is
        claimed only in `begin`, which ends a run that still uses it: first comes whether the checkpoint fits and has steps left.
        """
        self.state = state
        if self._generation is not None and self._keeps_memory:
            self._memory = self._memory_of(self._generation)
            if self._generation.number > 1 and self._find_in(self._memory):
                return
        if self.checkpoints is None:
            self.report.say(
                f"no checkpoints: neither {contract.DDPJOB_CHECKPOINT_DIR} nor {contract.DDPJOB_CHECKPOINT_URI} is set,"
                " so a restart begins at step 0"
            )
            return
        if self.gang.rank == 0:
            self.checkpoints.claim.check()
        self._found = self._read_newest(self.checkpoints)
        if self._found is None:
            self.report.say(f"no complete checkpoint in {self.checkpoints.location}: starting at step 0")

    @property
    def found_step(self) -> int:
        """Number of steps that the state holds which `restore` loads; 0 if there is none."""
        step: int = 0 if self._found is None else self._found["step"]
        return step

    def restore(self, state: State) -> None:
        """Load what `find` has found, if it was called, or finds now."""
        if not hasattr(self, "state"):
            self.find(state)
        content, self._found = self._found, None
        if content is None:
            return
        if self._from_memory:
            assert self._memory is not None
            self._memory.load(content)
            load_own(state, rank=self.gang.rank, world_size=self.gang.world_size)
            lost = (
                ": no step is lost" if self._memory.has_last_step else "; later steps, if there were any, are repeated"
            )
            self.resumed = True
            self.report.say(f"resumed from step {state.step} in memory{lost}")
        else:
            self._load(content)

    @property
    def can_resume(self) -> bool:
        """Whether there is a place for checkpoints, or a restart in place finds the state in memory."""
        return self._keeps_memory or self.checkpoints is not None

    @property
    def _keeps_memory(self) -> bool:
        return self._generation is not None and os.environ.get(contract.DDPJOB_STATE_IN_MEMORY) != "0"

    def begin(
        self,
        *,
        total_steps: int,
        steps_per_epoch: int | None = None,
        save_due: Callable[[], bool] = lambda: False,
        settings: Mapping[str, object] | None = None,
        profile_steps: Sequence[int] = (),
        replicas: Sequence[nn.Module] = (),
    ) -> None:
        """Take the checkpoint folder, and honour SIGTERM from here on.

        `save_due` says whether this rank wants all ranks to save. Observers get the settings. `profile_steps` are the first step
        that the profiler records and the step before which it ends, or nothing. `replicas` are the models that all ranks share.
        """
        if self.gang.rank == 0:
            self.report.watch(observers.from_environment(os.environ))
        if profile_steps:
            file = step_trace.path_for(profile_steps, os.environ, rank=self.gang.rank)
            steps = range(*profile_steps)
            self._trace = StepTrace(steps, file, self.gang.device, say=self.report.say, moved=self.timeline.moved)
        if self.checkpoints is not None and self.state.step < total_steps:
            if self.gang.rank == 0:
                self.checkpoints.open()
            if not self._from_memory and (newer := self._read_newest(self.checkpoints)) is not None:
                self._load(newer)
        elif self.resumed and not self._from_memory:
            self.report.say(
                f"nothing to train: the checkpoint is of step {self.state.step} of {total_steps};"
                " rename the job or remove its checkpoint folder to start from step 0"
            )
        # Until here there is nothing to save, and SIGTERM ends the process.
        copy_due = (lambda: False) if self._memory is None else self._memory.is_due
        self.stop = StopAgreement(
            self.gang, StopRequest(), save_due=save_due, copy_due=copy_due, gradients_kept=lambda: self._gradients_kept
        )
        if self._memory is not None:
            self._memory.hold(replicas, restored=self._from_memory)
        self.gang.barrier()  # from the first progress line on, every rank honours SIGTERM
        if (current := self._generation) is not None:
            current.record_begin()
        restarts = NO_RESTARTS if current is None else self._restarts_before(current)
        self.report.begin(
            step=self.state.step,
            total_steps=total_steps,
            steps_per_epoch=steps_per_epoch,
            checkpoint_step=self.writer.newest_step,
            restarts=restarts,
            settings=settings,
        )
        self.timeline.begin_training(step=self.state.step)

    def stop_reached(self) -> bool:
        """Whether all ranks agreed to stop, to be asked between steps. Raises what went wrong with the last checkpoint."""
        self.timeline.enter(Phase.AGREE)
        if self._trace is not None:
            self._trace.before_step(self.state.step)
        self.writer.check()
        self._watch_compiler()
        return self.stop.reached()

    def copy_if_agreed(self) -> None:
        """Between steps: begin to copy the state into memory, if all ranks are ready for it."""
        if self._memory is not None and self.stop.copy_agreed:
            self._memory.begin_copy()
            self.stop.copy_agreed = False

    def step_done(self, *, num_samples: int = 0, is_whole: bool = True) -> None:
        """Count a step; the number of samples is the sum over all ranks. `is_whole`: no gradients are kept for the next one."""
        self.state.step += 1
        self._gradients_kept |= not is_whole
        if self._memory is not None:
            if not is_whole:
                self._memory.leave_out("gradients are kept from step to step, and are no part of the state")
            self._memory.step_done()
        if self._generation is not None:
            self._generation.step_done(self.state.step)
        self.timeline.step_done(self.state.step, num_samples=num_samples)
        self.report.step_done(self.state.step, num_samples=num_samples)

    def step_left(self, *, is_done: bool) -> None:
        """The loop was left within a step, which `is_done`, or the state may still be that before it."""
        self.timeline.enter(Phase.LEAVE)  # first: the other ranks must not see a rank that continues
        left = self.state.step + 1  # all ranks leave here, whether that is done or not
        self.timeline.step_done(left, num_samples=0)
        if is_done:
            self.state.step = left
            if self._generation is not None:
                self._generation.step_done(left)
            self.report.step_done(left, num_samples=0)

    def _watch_compiler(self) -> None:
        """A new shape is compiled in a later step, too: that is a phase of its own, with the limit of the first step."""
        if self._compiler is None and "torch._dynamo" in sys.modules:  # else nothing is compiled yet
            from ddpjob_session.compiler_watch import CompilerWatch

            self._compiler = CompilerWatch(self.timeline)

    def save(self) -> None:
        """Save a checkpoint of this step, if there is a folder for it. Training waits only for the copy.

        The phase CHECKPOINT has begun before, with what prepares the state.
        """
        self.writer.save(self.state, since=self.timeline.mark.since)

    def keep_alive(self) -> None:
        """Show the watchdog and the operator that there is progress within a phase."""
        self.timeline.moved()
        self.report.keep_alive()

    def count_call(self) -> None:
        """Before the loop: this rank begins what all ranks take part in."""
        if self._watchdog is not None:
            self._watchdog.num_calls += 1

    def wait_for_others(self, place: str, *, is_early: bool) -> None:
        """Wait until all ranks are at the end of the training; `place` is where this one has left it.

        Raises:
            RuntimeError: another rank continues, and waits for this one.
        """
        self.timeline.enter(Phase.LEAVE)
        if self.gang.is_destroyed:
            return
        other = self._watchdog and self._watchdog.wait_for_others(self.gang, is_early=is_early)
        if other is not None:
            raise RuntimeError(
                f"rank {self.gang.rank} left {place}, but rank {other} continues and waits for it: leave the loop by `break`,"
                " and the block by `sys.exit(0)`, on all ranks at the same place, or on none"
            )

    def finish(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        self.timeline.enter(Phase.CHECKPOINT)
        if self._trace is not None:
            self._trace.close()
        if self._compiler is not None:
            self._compiler.close()
        if not self.gang.is_destroyed:
            self.stop.finish()
        self.writer.wait()

    def write_evidence(self, *, complete: bool, **facts: Any) -> None:
        """Report where the time went, and write the evidence file. All ranks take part."""
        self.complete = complete
        if self.gang.is_destroyed:
            return
        ranks = self.gang.all_gather(limiter.spent(self.timeline, self.gang.device))
        hardware = self.gang.all_gather(evidence.hardware(self.gang.device))
        if self.gang.rank != 0:
            return
        if self.timeline.num_steps and not self.timeline.seconds[Phase.STEP]:  # else only whole steps are known
            self.report.say(limiter.report(ranks))
            facts["time_shares"] = limiter.shares(ranks)
        self.report.observe_checkpoint()
        path = evidence.write(
            self.timeline,
            os.environ,
            complete=complete,
            world_size=self.gang.world_size,
            hardware=hardware,
            first_step=self.report.first_step,
            last_step=self.state.step,
            **facts,
        )
        if path is not None:
            self.report.say(f"evidence in {path}")

    def stopped(self) -> int:
        """The exit code of a run that was asked to stop. All ranks have left the group, so the checkpoint is complete.

        Where another pod was asked, which the operator may replace, the state is kept in memory, too.
        """
        step = self.state.step
        current = self._generation
        if current is not None and contract.DDPJOB_REPLACEMENT_SECONDS in os.environ and not self.stop.request.received:
            if self._memory is not None:
                self._memory.keep_last_step()
            current.save()
        if self.checkpoints is None:
            self.report.say(f"stopped on request after step {step}; nothing is saved")
            return contract.EXIT_TERMINATED
        if self.gang.rank == 0 and (saved := self.writer.newest_step) != step:
            self.report.say(
                f"stopped on request after step {step}, which is not saved; the newest checkpoint is of step {saved}"
            )
            if saved is None:
                return contract.EXIT_TERMINATED
            step = saved
        else:
            self.report.say(f"stopped on request after step {step}; the checkpoint of it is complete")
        if self.gang.rank == 0:
            termination.write(f"{contract.TERMINATION_CHECKPOINT_PREFIX}{step}", echo=False)
        return contract.EXIT_CHECKPOINTED

    def _memory_of(self, current: generation.Generation) -> StateMemory:
        if self.gang.device.type in at_exit.DEVICES:
            memory = MemoryAtExit(current, self.state, self.gang)
            current.before_exit = memory.save
            return memory
        return PeriodicMemory(current, self.state, self.gang, HostCopy(self.gang.device, self.has_lost_collectives))

    def has_lost_collectives(self) -> bool:
        """Whether what a GPU computes now may be wrong, since a collective was aborted."""
        return self._watchdog is not None and self._watchdog.has_lost_collectives

    def _find_in(self, memory: StateMemory) -> bool:
        """Find the newest state in memory; False if there is none, or if rank 0 knows a checkpoint that is newer."""
        saved = self.checkpoints.newest_step() if self.checkpoints and self.gang.rank == 0 else None
        self._found = memory.find(self.timeline.moved, at_least=saved or 0)
        if self._found is None:
            return False
        self.writer.newest_step = saved
        self._from_memory = True
        return True

    def _restarts_before(self, current: generation.Generation) -> InPlaceRestarts:
        """What rank 0 reports of restarts in place. All ranks take part, since each knows of its own pod alone."""
        known = self.gang.all_gather((os.environ.get(contract.DDPJOB_IN_PLACE_CAUSE, ""), current.replacement))
        joined = sum(replacement for _, replacement in known)
        if current.number == 1:
            return InPlaceRestarts(joined_replacements=joined)
        cause = next((cause for cause, _ in known if cause), "a rank lost its connection to another one")
        has_last_step = self._memory is not None and self._memory.has_last_step
        place = f" at step {self.state.step}" if has_last_step else f", continued from step {self.state.step}"
        return InPlaceRestarts(number=current.number - 1, cause=f"{cause}{place}", joined_replacements=joined)

    def _read_newest(self, checkpoints: folder.CheckpointFolder) -> dict[str, Any] | None:
        """What the newest checkpoint holds, on all ranks; None if there is none, or if it was read before.

        Reading and sending takes longer than the watchdog's limit for some files, so each piece counts as progress.
        """
        moved = self.timeline.moved
        found = checkpoints.load_newest(self._newest, moved=moved) if self.gang.rank == 0 else None
        if found is not None:
            self._newest, self.writer.newest_step = found[0], found[0].step
        return shared_state.receive(self.gang, None if found is None else found[1], moved)

    def _load(self, content: dict[str, Any]) -> None:
        assert self.checkpoints is not None
        saved_by = self.state.load(content)
        load_own(self.state, rank=self.gang.rank, world_size=self.gang.world_size)
        self.resumed = True
        self.report.say(f"resumed from step {self.state.step} in {self.checkpoints.location}, {saved_by}")


@contextmanager
def joined(
    worker: Worker,
    limits: Limits,
    same: Mapping[str, str],
    *,
    keep: int,
    imported_from: float | None = None,
) -> Iterator[Run]:
    """Wait for the other ranks, join them, and leave the group together with them at the end of the block.

    An exception ends the process, with its exit code and termination message.

    Args:
        worker: Which rank this is.
        limits: For the watchdog.
        same: What must be the same on all ranks, by name.
        keep: How many checkpoints to keep.
        imported_from: When the program began to import its modules, on the monotonic clock.
    """
    faulthandler.enable()
    if os.getpid() == 1:  # to which the kernel gives no signal without a handler; `begin` sets the one that saves
        signal.signal(signal.SIGTERM, lambda *_: ending.leave(contract.EXIT_TERMINATED))
    timeline = Timeline(open_events(os.environ, rank=worker.rank), rank=worker.rank, began=process_began())
    timeline.enter(Phase.IMPORT, now=imported_from)
    inspection.serve(worker.rank, timeline, os.environ)
    watchdog = Watchdog(limits, timeline)
    run = None
    try:
        timeline.enter(Phase.RENDEZVOUS)
        device, store = distributed.rendezvous(worker, limits, same)
        timeline.enter(Phase.CONNECT)
        watchdog.watch(store, worker)
        group = distributed.join(worker, limits, device, store)
        with watchdog, group as gang, Reporter(enabled=worker.rank == 0) as report:
            timeline.enter(Phase.SETUP)
            checks.check_group(gang)  # here rather than where the group is created: the watchdog is active by now
            run = Run(gang, report, timeline, watchdog, keep=keep)
            yield run
            timeline.enter(Phase.LEAVE)
        # All ranks have left the group. srun and others send SIGTERM as soon as one rank has exited: not a request to stop.
        if hasattr(run, "stop"):
            run.stop.request.ignore()
        if run.complete and (current := generation.current(os.environ)) is not None:
            current.complete()
    except BaseException as error:  # noqa: BLE001 - any exception ends the process, with a termination message
        ending.fail(error, worker, watchdog, None if run is None else run.writer)
