"""A session: what a script that keeps its own loop needs to train on many ranks and to survive restarts."""

import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ddpjob_ranks import contract, termination
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch import identity
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch.timeline import Phase
from ddpjob_session import generators, replica, sources
from ddpjob_session.batches import Epochs
from ddpjob_session.observers import Observer
from ddpjob_session.optimizer_steps import OptimizerSteps
from ddpjob_session.reported import Reported
from ddpjob_session.run import joined
from ddpjob_session.settings import text_of
from ddpjob_session.state import RESERVED, ScriptState, State, Stateful, digests, fingerprints
from ddpjob_session.steps import Policy, Steps, Stopped


class Session:
    """One rank of a training, from joining the other ranks to the exit code. Use it as a context manager.

    The process group of `torch.distributed` exists within the block: nccl on GPUs, gloo on CPUs. At the end of the block
    all ranks leave it together, once the last checkpoint is complete. After a request to stop (SIGTERM of any rank) the
    block ends by SystemExit with code 75. An exception within the block, or `sys.exit` before the last step, ends the process
    at once, with a traceback and the termination message; so make the session the outermost `with` block.

    Args:
        settings: What must be the same on all ranks, such as `vars(arguments)`; they are compared before training. Those
            that a checkpoint was saved with may differ, which is reported.
        keep_checkpoints: Number of checkpoints to keep, the newest ones, in the place that DDPJOB_CHECKPOINT_DIR or
            DDPJOB_CHECKPOINT_URI names where the block begins.
        first_step_timeout_seconds: Longest time without progress until the first step is done. Then the watchdog ends the
            run with exit code 70 and names the rank that is late.
        step_timeout_seconds: The same after the first step.
        setup_timeout_seconds: The same before the loop, where a script may prepare data.
        evaluation_timeout_seconds: The same within `evaluating`.
        observers: Objects that receive rank 0's metrics, in addition to TensorBoard's event files (`Observer`).

    Attributes:
        rank: Number of this process among all processes, from 0.
        world_size: Number of all processes.
        local_rank: Number of this process on its node.
        device: The GPU of this process, which is the current CUDA device, or the CPU.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        keep_checkpoints: int = 3,
        first_step_timeout_seconds: float = 600.0,
        step_timeout_seconds: float = 300.0,
        setup_timeout_seconds: float = 3600.0,
        evaluation_timeout_seconds: float = 900.0,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._observers = observers
        self._settings = settings or {}
        self._compared = {str(name): text_of(value) for name, value in self._settings.items()}
        self._keep = keep_checkpoints
        more: dict[str, float] = {Phase.SETUP: setup_timeout_seconds, Phase.EVALUATE: evaluation_timeout_seconds}
        self._limits = Limits(
            first_step_seconds=first_step_timeout_seconds, step_seconds=step_timeout_seconds, more=more
        )
        self._began = time.monotonic()
        self._state: ScriptState | None = None
        self._is_tracked = False
        self._num_loaders = 0
        self._different: set[str] = set()  # parts of which the log says that ranks differ
        self._told: int | None = None  # by `steps_done`
        self._replicas: list[DistributedDataParallel] = []
        self._leaving = ExitStack()
        self._steps: Steps | None = None  # until the loop begins
        self._saved_at = -math.inf
        self._saved_step: int | None = None
        self._save_asked = False

    def __enter__(self) -> Self:
        """Wait for the other ranks, set the device, and create the process group."""
        try:
            worker = _this_worker()
        except ConfigError as error:
            raise SystemExit(termination.refuse(error)) from None
        same = {"code": sources.of_script(), **self._compared}
        self._run = self._leaving.enter_context(
            joined(worker, self._limits, same, keep=self._keep, imported_from=self._began)
        )
        self.rank, self.world_size, self.local_rank = worker.rank, worker.world_size, worker.local_rank
        self.device = self._run.gang.device
        self._reported = Reported(self._run.report.log_metrics, self.device)
        self.print(
            f"launcher {worker.launcher}, world size {worker.world_size}, torch {torch.__version__}, {self.device}"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save what is not saved yet, and leave the group; after a request to stop, raise SystemExit."""
        stopped, exited = isinstance(error, Stopped), isinstance(error, SystemExit) and not error.code
        if error is not None and not stopped and not exited:
            self._leaving.__exit__(kind, error, trace)  # ends the process
        with self._leaving:
            if (steps := self._steps) is not None and not stopped:
                steps.close()
            if exited and steps is not None and steps.done < steps.total:
                raise RuntimeError(  # other ranks may continue, and would wait for this one
                    f"sys.exit(0) within the loop after step {self._run.timeline.mark.step} of {steps.total}: other ranks cannot know that this"
                    " one ends; to end the training early, leave the loop by `break` on all ranks after the same step"
                ) from None
            if not stopped:
                self._wait_for_others()
            if steps is not None:
                self._reported.show_all()
                self.save()
                self._run.finish()
                self._run.write_evidence(complete=not stopped)
                if not stopped:
                    self._run.report.end()
        if stopped:
            raise SystemExit(self._run.stopped()) from None

    def _wait_for_others(self) -> None:
        if self._steps is None:
            self._run.wait_for_others("the `with` block of its session before the loop", is_early=False)
            return
        step, total = self._run.timeline.mark.step, self._steps.total
        self._run.wait_for_others(f"the loop after step {step} of {total}", is_early=self._steps.done < total)

    def replicate(self, model: nn.Module, **options: Any) -> DistributedDataParallel:
        """The model on the device and in DistributedDataParallel, which takes the options; equal on all ranks."""
        return self.adopt(replica.replicate(model.to(self.device), self._run.gang, **options))

    def adopt(self, replicated: DistributedDataParallel) -> DistributedDataParallel:
        """Make a model that somebody else has wrapped, such as a framework, as exact as one of `replicate`. Returns the model.

        To be called before its first backward pass, on all ranks.
        """
        self._run.count_call()
        if why := replica.settle_buckets(replicated):
            self.print(f"a resumed run may differ from one that was not interrupted in the last bits: {why}")
        self._replicas.append(replicated)
        return replicated

    def steps_done(self) -> int:
        """The number of steps done, in all attempts: of the state that `track` will load, 0 without one; later, of the state.

        So a framework can find its place in the data before it makes the parts that are tracked. All ranks call it.
        """
        state = self._find_state()
        self._told = state.step if self._is_tracked else self._run.found_step
        return self._told

    def _find_state(self) -> ScriptState:
        if self._state is None:
            self._run.count_call()
            program = f"script {Path(sys.argv[0]).name}"
            self._state = ScriptState({}, program=program, world_size=self.world_size, settings=self._compared)
            self._run.find(self._state)
        return self._state

    def track(
        self, *, per_rank: Mapping[str, Stateful] | None = None, new: Collection[str] = (), **parts: Stateful
    ) -> State:
        """Make these parts the state of the training, and load the newest checkpoint into them if there is one.

        Args:
            per_rank: Parts that each rank has of its own, by name, such as the position of a stream of data: saved for each
                rank. On another number of ranks they are refused, unless the part has a method
                `load_state_dicts(states, rank, world_size)`, which gets those of all ranks.
            new: Names of parts that a checkpoint may lack, since it is older than they are; they stay as they are.
            parts: By name, whatever has `state_dict` and `load_state_dict`: model, optimizer, scheduler, sampler, scaler.
                Each must be equal on all ranks, as rank 0's is saved. A model that is replicated is saved without DDP.
                Without parts only the number of steps and the generators of random numbers are saved.

        Returns:
            The state, whose `step` is the number of steps done, in all attempts.

        Raises:
            ValueError: it was called before, or a part has a name that is reserved or no `state_dict`.
        """
        if self._is_tracked:
            raise ValueError("Session.track: it was called before; call it once, with all parts")
        own = per_rank or {}
        for name, part in (*own.items(), *parts.items()):
            if name in RESERVED or not isinstance(part, Stateful):
                wrong = "the name is reserved" if name in RESERVED else f"{type(part).__name__} has no state_dict"
                raise ValueError(f"Session.track: {name}: {wrong}")
        bare = {
            name: part.module if isinstance(part, DistributedDataParallel) else part for name, part in parts.items()
        }
        state = self._find_state()
        state.parts, state.own, state.new = bare, own, new
        state.check_loadable()
        self._run.count_call()
        self._run.restore(state)
        self._name_differences(self._run.gang.all_gather(fingerprints(state) | digests(state)))
        self._is_tracked = True
        return state

    def steps(self, total: int, *, checkpoint_every: int = 0, checkpoint_every_seconds: float = 600.0) -> Steps:
        """The numbers of the steps that are left, from the step at which the last attempt stopped to `total - 1`.

        Each time the loop comes back for the next number, the step before it is done. A step that is left by `break` is
        done too, and ends the training. All ranks stop after the same step. A loop that is not yours calls `begin_step` and
        `end_step` of what this returns instead.

        Args:
            total: Number of steps of the whole training.
            checkpoint_every: Number of steps between two checkpoints; 0 saves by time alone.
            checkpoint_every_seconds: The time between two checkpoints; `math.inf` saves by steps alone.

        Raises:
            RuntimeError: it was called before.
            ConfigError: `track` was not called, and there is a place for checkpoints, or restarts in place keep the state.
        """
        if self._steps is not None:
            raise RuntimeError("Session.steps: it was called before; call it once, with the steps of all epochs")
        run = self._run
        if not self._is_tracked and run.can_resume:
            raise ConfigError(
                "Session.steps: Session.track was not called, so a checkpoint would hold no weights, and a restart would"
                " continue with new ones; call session.track(model=model, optimizer=optimizer) before session.steps, or"
                " session.track() if the number of steps is the whole state"
            )
        state = self._find_state() if self._is_tracked else self.track()
        run.count_call()
        if self.rank == 0:
            run.report.watch(self._observers)
        run.begin(
            total_steps=total,
            save_due=lambda: time.monotonic() - self._saved_at >= checkpoint_every_seconds,
            settings=self._settings,
            replicas=self._replicas,
        )
        self._saved_at = time.monotonic()
        if self._told not in (None, state.step):
            raise RuntimeError(
                f"Session.steps_done: it returned {self._told}, and then an earlier attempt completed a checkpoint of step"
                f" {state.step}; this attempt ends, so that the next one begins there"
            )
        self._optimizers = OptimizerSteps(state)
        self._leaving.callback(self._optimizers.close)
        policy = _Saving(self, state, first=state.step, every=checkpoint_every)
        self._steps = Steps(run, total, policy=policy, optimizers=self._optimizers)
        return self._steps

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[], None]]:
        """A context for an evaluation, as the last part of a step: a phase with a limit of its own, in which nothing counts as hung.

        It gives a function to be called now and then, such as for each batch, equally often on all ranks. That shows progress,
        and ends the evaluation once all ranks agreed to stop: the step then counts as done if an optimizer has made its step,
        and what follows in the step is not done again, such as a scheduler that needs the result.

        Raises:
            RuntimeError: the loop over `steps` has not begun.
        """
        steps, run = self._begun("evaluating"), self._run
        before = run.timeline.mark.phase

        def go_on() -> None:
            run.keep_alive()
            if run.stop.reached(ask_now=True):
                steps.stop_within()

        run.timeline.enter(Phase.EVALUATE)
        with run.report.phase(contract.PHASE_EVALUATE):
            yield go_on
        run.timeline.enter(before)

    def batches(self, loader: DataLoader[Any], *, per_step: int = 1, seed: int = 0) -> Iterator[Any]:
        """The batches of a DataLoader, epoch after epoch without end, from those of the next step on.

        They are found by their indices, so nothing that is done is read again. `set_epoch` is called for each epoch. The
        loader needs a map-style data set. With another number of ranks the order goes on if all ranks together read as many
        samples in a step as before.

        Args:
            loader: Of the samples of this rank; its sampler splits them, as DistributedSampler does.
            per_step: Number of batches that each step takes.
            seed: Of the order, where the sampler has no `set_epoch`, and of what the data set draws, such as augmentation.

        Raises:
            ValueError: the data have no indices, so the position is a state of their own.
            ConfigError: when the first batch is taken: a step has another number of samples than in the checkpoint.
        """
        epochs = Epochs(loader, seed=seed, rank=self.rank)
        name, self._num_loaders = str(self._num_loaders), self._num_loaders + 1

        def coming() -> Iterator[Any]:
            step = self._begun("batches").done
            if (shape := epochs.shape) is not None:
                place = [shape[0] * per_step * self.world_size, shape[1] / per_step]
                before = self._find_state().places.get(name, place)
                if step and place != before:
                    raise ConfigError(_another_place(step, place, before))
                self._find_state().places[name] = place
            yield from epochs.from_batch(step * per_step, self.keep_alive)

        return coming()

    def report(self, **metrics: float | torch.Tensor) -> None:
        """Show metrics of the current step, such as `loss`: in a log line and in the progress line that the operator reads.

        Rank 0's values are shown, each metric at most once a second, so it may be called in each step. A tensor on a GPU is
        read when the next step is done, so that the GPU does not wait for the host. Values that are not finite appear in the log line alone.

        Raises:
            RuntimeError: the loop over `steps` has not begun.
        """
        steps = self._begun("report")
        self.keep_alive()
        if self.rank == 0:
            step = steps.done + steps.is_open
            self._reported.add(metrics, step=step, is_last=step == steps.total)

    def save(self) -> None:
        """Save a checkpoint of the steps done, unless that is saved. All ranks must call it, at the same place.

        Within a step it is saved once that step is done, since some parts are still to change in it and others have changed.

        Raises:
            RuntimeError: the loop over `steps` has not begun.
        """
        steps = self._begun("save")
        run = self._run
        self._save_asked = steps.is_open
        if self._save_asked or self._saved_step == run.state.step:
            return
        self._reported.show_all()
        run.timeline.enter(Phase.CHECKPOINT)
        if run.checkpoints is not None and not run.gang.is_destroyed:
            mine = generators.state(generators.capture(self.device, run.state.own))
            known = run.gang.all_gather((mine, digests(run.state)))
            run.state.random = [drawn for drawn, _ in known]
            self._name_differences([found for _, found in known])
        run.save()
        run.stop.save_agreed = False
        self._saved_at, self._saved_step = time.monotonic(), run.state.step

    def _name_differences(self, ranks: Sequence[Mapping[str, str]]) -> None:
        for name, found in ranks[0].items():
            if name not in self._different and (
                others := [rank for rank, its in enumerate(ranks) if its[name] != found]
            ):
                self._different.add(name)
                self.print(
                    f"Session.track: {name} differs between rank 0 and rank {others[0]}, and only rank 0's is saved; track it"
                    f" for each rank: track(per_rank={{{name!r}: ...}}), or make it equal on all ranks"
                )

    def _begun(self, method: str) -> Steps:
        if self._steps is None:
            raise RuntimeError(
                f"Session.{method}: the loop over Session.steps has not begun; call it within the loop or after it"
            )
        return self._steps

    def keep_alive(self) -> None:
        """Show the watchdog and the operator that there is progress, within a step that takes long, such as one with an evaluation."""
        self._run.keep_alive()

    def print(self, text: object) -> None:
        """Print a line, on rank 0 only."""
        self._run.report.say(str(text))


class _Saving(Policy):
    """Saves after a number of steps, and when it was asked for within a step."""

    def __init__(self, session: Session, state: State, *, first: int, every: int) -> None:
        self._session, self._state, self._first, self._every = session, state, first, every

    def before_step(self) -> None:
        """As close to the first step as they were to that step when they were saved, the generators continue."""
        self._session._reported.show(before=self._state.step)
        rank, drawn = self._session.rank, self._state.random or []
        if self._state.step == self._first and rank < len(drawn):
            generators.restore(drawn[rank], self._session.device)

    def save_is_due(self) -> bool:
        """See Policy."""
        is_nth = self._every > 0 and self._state.step > self._first and self._state.step % self._every == 0
        return is_nth or self._session._save_asked

    def save(self) -> None:
        """See Policy."""
        self._session.save()


def _another_place(step: int, place: Sequence[float], before: Sequence[float]) -> str:
    return (
        f"Session.batches: a step has {place[0]:g} samples on all ranks together and an epoch of {place[1]:g} steps; when the"
        f" checkpoint at step {step} was saved, it had {before[0]:g} samples and an epoch of {before[1]:g} steps, so step"
        f" {step} is another place in the data; set the batch size of each rank so that all ranks together read"
        f" {before[0]:g} samples in a step, or rename the job or remove its checkpoint folder to start from step 0"
    )


def _this_worker() -> identity.Worker:
    """Which rank this process is.

    Raises:
        ConfigError: the environment is wrong, or asks for several processes, which only a launcher starts.
    """
    place = identity.resolve(os.environ)
    if isinstance(place, identity.Node):
        raise ConfigError(
            f"environment: {contract.NPROC_PER_NODE} is {len(place.workers)}, but this process is not a launcher;"
            f" start the script with python -m ddpjob.launch {Path(sys.argv[0]).name}, or unset {contract.NPROC_PER_NODE}"
        )
    return place
