"""The training loop."""

import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpjob_ranks import contract
from ddpjob_ranks.watch.step_timer import StepTimer
from ddpjob_ranks.watch.timeline import Phase
from ddpjob_session.checkpoints.folder import CheckpointFolder
from ddpjob_session.checkpoints.storage import UnavailableError
from ddpjob_session.host_values import HostValues
from ddpjob_session.run import Run
from ddpjob_session.steps import Steps, Stopped
from ddpjob_trainer import export, optim, randomness, replicas
from ddpjob_trainer.config import ResolvedConfig
from ddpjob_trainer.data import Batch, ImageData
from ddpjob_trainer.evaluate import Evaluation, evaluate
from ddpjob_trainer.numerics import Numerics, garbage_collector_paused
from ddpjob_trainer.recipes import Recipe
from ddpjob_trainer.sampling import Sampling
from ddpjob_trainer.state import TrainingState

#: Steps between two runs of Python's cyclic garbage collector. Reference cycles that a recipe leaves in each step keep
#: their tensors for so many steps. A run takes 0.03 ms with the built-in recipes, and 3 ms for each 100,000 objects that a
#: recipe creates after the start and keeps (two busy cores of an AMD EPYC): at most 0.2 ms a step.
COLLECT_EVERY_STEPS = 20


class DivergedError(RuntimeError):
    """Loss or weights are no longer finite, and further steps cannot change that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """What the log line of a step needs."""

    loss: HostValues
    learning_rate: float
    timer: StepTimer


class Batches(Protocol):
    """This rank's part of each step."""

    @property
    def sampling(self) -> Sampling:
        """Which samples make up a step."""

    def batch(self, step: int) -> Batch:
        """The rank's samples of the step, augmented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Everything that one rank needs to train. `replica` is the model in DDP; `state.model` is the model itself."""

    config: ResolvedConfig
    session: Run
    data: ImageData
    recipe: Recipe
    numerics: Numerics
    feed: Batches
    state: TrainingState
    replica: nn.Module
    steps: Steps
    exported: list[str] = field(default_factory=list)
    """Files with weights that this attempt has written."""
    unwritten: list[LoggedStep] = field(default_factory=list)
    """Steps whose log lines are still to be written."""

    def run(self) -> bool:
        """Train to the end, evaluate and report; returns False if all ranks agreed to stop earlier.

        Then the last checkpoint is on the disk. The evidence file is written in both cases.
        """
        complete = False
        with garbage_collector_paused(), suppress(Stopped):
            self.train()
            self.evaluate(last=True)
            complete = True
        if not complete:
            self.save()
        self.session.finish()
        report, config = self.session.report, self.config
        digest = replicas.model_digest(self.state.model) if self.session.gang.rank == 0 else ""
        self.session.write_evidence(
            complete=complete,
            config=config.model_dump(by_alias=True),
            seed=config.seed,
            accuracy_by_step=report.accuracies,
            weights_sha256=digest,
        )
        if complete:
            report.say(f"weights sha256 {digest}")
            report.end()
        return complete

    def train(self) -> None:
        """Take all remaining steps.

        A checkpoint does not record whether the evaluation after its step was interrupted, so a resumed run repeats it.
        """
        config, state, gang = self.config, self.state, self.session.gang
        steps_per_epoch = self.feed.sampling.steps_per_epoch
        total_steps = self.steps.total
        if self.session.resumed and state.step < total_steps and self.evaluation_is_due():
            self.evaluate()
        for step in range(state.step, total_steps):
            self.advance(step, logged=is_due(step + 1, config.log_every_steps) or step + 1 == total_steps)
            if is_due(state.step, COLLECT_EVERY_STEPS):
                gc.collect()  # on all ranks after the same step, see garbage_collector_paused
            if is_due(state.step, config.verify_replicas_every_steps):
                replicas.verify(state.model, gang, step=state.step)
            saves = state.step % steps_per_epoch == 0 or is_due(state.step, config.checkpoint_every_steps)
            evaluates = state.step < total_steps and self.evaluation_is_due()
            if (saves or evaluates) and gang.device.type == "cuda":
                torch.cuda.synchronize(gang.device)  # else steps still queued would count as saving or evaluation
            if saves:
                self.save()
            if evaluates:
                self.evaluate()

    def evaluation_is_due(self) -> bool:
        """Whether the configuration asks for an evaluation after the steps done."""
        epochs_done, steps_of_epoch = divmod(self.state.step, self.feed.sampling.steps_per_epoch)
        return is_due(self.state.step, self.config.evaluate_every_steps) or (
            steps_of_epoch == 0 and is_due(epochs_done, self.config.evaluate_every_epochs)
        )

    def advance(self, step: int, *, logged: bool) -> None:
        """Agree on continuing, take the step, count it, and log it if asked to.

        The loss of a GPU is read once the next step is in its queue, which would otherwise run empty.
        """
        session = self.session
        timer = StepTimer(session.gang.device, exact=logged, timeline=session.timeline)
        timer.enter(Phase.AGREE)
        self.steps.begin_step()
        loss = self.take_step(step, timer)
        self.steps.end_step(num_samples=len(self.feed.sampling.global_batch(step)))
        self.write_log()
        if logged:
            self.log(loss, timer)
            if self.unwritten[-1].loss.are_here:
                self.write_log()

    def take_step(self, step: int, timer: StepTimer) -> torch.Tensor:
        """One optimizer step; returns this rank's loss before it, on the device."""
        timer.enter(Phase.DATA)
        batch = self.feed.batch(step)
        optimizer = self.state.optimizer
        steps_per_epoch, schedule = self.feed.sampling.steps_per_epoch, self.recipe.schedule
        optim.set_learning_rate(optimizer, step, self.config, steps_per_epoch=steps_per_epoch, schedule=schedule)
        self.recipe.before_step(self.state.model, step / (self.config.epochs * steps_per_epoch))
        self.seed_layers(step, randomness.TRAINING_LAYERS)
        optimizer.zero_grad()
        *first, last = batch.parts(self.config.micro_batch_size)
        losses = [self.add_gradients(part, timer) for part in first]
        losses.append(self.add_gradients(last, timer, reduced=True))
        timer.enter(Phase.OPTIMIZER)
        self.update_weights()
        timer.enter(Phase.LOG, step=step + 1)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def add_gradients(self, part: Batch, timer: StepTimer, *, reduced: bool = False) -> torch.Tensor:
        """Forward and backward pass of a part of the batch; returns its share of the loss. `reduced` averages over ranks."""
        timer.enter(Phase.FORWARD)
        replica = self.replica
        with replica.no_sync() if not reduced and isinstance(replica, DistributedDataParallel) else nullcontext():
            with self.numerics.autocast():
                loss = self.recipe.loss_of(replica, part)
            timer.enter(Phase.BACKWARD)
            if reduced and self.session.gang.world_size > 1:
                timer.watch_gradients(loss)
            torch.autograd.backward(self.state.scaler.scale(loss))
        return loss.detach()

    def update_weights(self) -> None:
        """Clip the gradients, take the optimizer's step, and update the moving average."""
        state, scaler = self.state, self.state.scaler
        if self.config.clip_gradient_norm:
            scaler.unscale_(state.optimizer)
            nn.utils.clip_grad_norm_(state.model.parameters(), self.config.clip_gradient_norm)
        with self.numerics.autocast():  # for optimizers that multiply matrices
            scaler.step(state.optimizer)
        scaler.update()
        if state.average is not None:
            state.average.update_parameters(state.model)

    def log(self, loss: torch.Tensor, timer: StepTimer) -> None:
        """Begin to read the loss of the step. The mean of the ranks' losses is the mean over the step's samples (see Batch)."""
        mean_loss = self.session.gang.sum_(loss) / self.session.gang.world_size
        host_loss = HostValues(self.state.step, {"loss": mean_loss}, self.session.gang.device)
        rate = self.state.optimizer.param_groups[0]["lr"]
        self.unwritten.append(LoggedStep(loss=host_loss, learning_rate=rate, timer=timer))

    def write_log(self) -> None:
        """Print rank 0's lines of the steps that were logged."""
        while self.unwritten:
            logged = self.unwritten.pop()
            step, loss = logged.loss.step, logged.loss.read()["loss"]
            if not math.isfinite(loss):
                raise self.diverged(f"the loss is {loss}", step=step)
            seconds, exposed_seconds = logged.timer.seconds(), logged.timer.exposed_seconds
            self.session.timeline.sample(seconds, exposed_seconds)
            self.session.timeline.flush()
            self.session.report.log(
                step=step,
                loss=loss,
                data_seconds=seconds[Phase.DATA],
                compute_seconds=sum(seconds[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)),
                exposed_seconds=exposed_seconds,
                learning_rate=logged.learning_rate,
            )

    def save(self) -> None:
        """Save a checkpoint of this step, if there is a folder for it. Training waits only for the copy."""
        self.write_log()
        self.session.timeline.enter(Phase.CHECKPOINT)
        if not torch.stack(torch._foreach_norm(list(self.state.model.parameters()))).isfinite().all():
            raise self.diverged("weights are not finite", step=self.state.step)
        self.session.gang.broadcast_buffers(self.state.model)  # rank 0's, which the moving average shares
        self.session.save()

    def diverged(self, what: str, *, step: int) -> RuntimeError:
        """The error to raise. It is the same on all ranks, since losses are summed and weights are equal, unless a collective was aborted."""
        if self.session.has_lost_collectives():
            return dist.DistBackendError(
                f"{what} after step {step}: NCCL aborted a collective, because another rank failed"
            )
        return DivergedError(
            f"training has diverged: {what} after step {step} (learningRate {self.config.learning_rate:g});"
            " this state is not saved: set a lower learningRate or a longer warmupEpochs; earlier checkpoints are intact"
        )

    def evaluate(self, *, last: bool = False) -> None:
        """Report the metrics of the held-out split."""
        recipe, config = self.recipe, self.config
        self.write_log()
        self.session.timeline.enter(Phase.EVALUATE)
        self.session.gang.broadcast_buffers(self.state.model)  # rank 0's, which the moving average shares
        self.seed_layers(self.state.step, randomness.EVALUATION_LAYERS)
        are_wanted = {"never": False, "last": last, "always": True}[config.test_time_augmentation]
        views = recipe.test_time_forward if are_wanted else None
        with self.session.report.phase(contract.PHASE_EVALUATE), self.numerics.autocast():
            gc.collect()
            found = evaluate(
                self.state.evaluated,
                self.data.test,
                views or recipe.forward,
                {name: new() for name, new in recipe.metrics.items()},
                self.session.gang,
                batch_size=config.evaluation_batch_size,
                stop_reached=self.asked_to_stop,
            )
            if found is None:
                raise Stopped
            note = recipe.test_time_note if views else ""
            self.session.report.evaluated(
                found.values, found.texts, headline=recipe.headline, num_samples=found.num_samples, note=note
            )
            with self.unless_unavailable(last=last):
                self.export(found, last=last, comparable=views is None or config.test_time_augmentation == "always")

    @contextmanager
    def unless_unavailable(self, *, last: bool) -> Iterator[None]:
        """Training continues where the weights of an evaluation before the last one cannot be stored."""
        try:
            yield
        except UnavailableError as error:
            if last:
                raise
            self.session.report.say(f"weights of this evaluation are not exported: {error}. Training continues")

    def export(self, found: Evaluation, *, last: bool, comparable: bool) -> None:
        """Have the weights written if they are the best ones so far by the recipe's metric, and after the last step.

        An evaluation that is not `comparable`, since it alone has test-time augmentation, replaces no best weights.
        """
        checkpoints, name = self.session.checkpoints, self.recipe.headline
        if checkpoints is None or self.session.gang.rank != 0:
            return
        data = dict(self.state.data)
        facts = {
            "recipe": self.config.recipe,
            "settings": self.config.settings,
            "step": self.state.step,
            "metrics": {name: value for name, value in found.values.items() if math.isfinite(value)},
            "data": data,
        }
        if last and self.session.report.first_step == self.state.step:
            # Nothing was left to train, so the folder is not claimed.
            if export.description(checkpoints) == facts:
                return
            checkpoints.open()
        writer = self.session.writer
        writer.wait_for_export()
        known = self.session.resumed or bool(self.exported)  # else the folder's files are those of another training
        best = export.description(checkpoints, prefix=export.BEST) if known else {}
        before = best.get("metrics", {}).get(name) if best.get("data") == data else None
        value = found.values[name]
        sign = 1 if self.recipe.larger_is_better else -1
        better = before is None or (comparable and sign * value > sign * before)
        for prefix, is_wanted in ((export.BEST, better), ("", last)):
            if is_wanted:
                write = partial(self._export_weights, checkpoints, facts, prefix, last)
                writer.export(self.state.evaluated.state_dict(), write)
                self.exported.append(prefix + export.WEIGHTS)

    def _export_weights(
        self,
        checkpoints: CheckpointFolder,
        facts: Mapping[str, Any],
        prefix: str,
        last: bool,
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        """On the thread that writes checkpoints."""
        with self.unless_unavailable(last=last):
            export.save(checkpoints, tensors, facts, prefix=prefix)

    def seed_layers(self, step: int, stream: int) -> None:
        """Make what layers draw from torch's generators, as dropout does, a function of (seed, step, rank)."""
        randomness.seed_generators(
            self.session.gang.device, seed=self.config.seed, step=step, rank=self.session.gang.rank, stream=stream
        )

    def asked_to_stop(self) -> bool:
        """Whether all ranks agreed to stop, asked at each batch of an evaluation. Marks progress for the watchdog."""
        self.session.timeline.moved()
        return self.session.stop.reached(ask_now=True)


def is_due(step: int, every_steps: int) -> bool:
    """Whether something that happens every `every_steps` steps (0: never) happens after this one."""
    return every_steps > 0 and step % every_steps == 0
