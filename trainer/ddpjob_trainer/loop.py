"""The training loop, whole and on one screen."""

from dataclasses import dataclass

import torch
from torch import nn

from ddpjob_trainer import contract, optim, replicas
from ddpjob_trainer.checkpoint import CheckpointFolder
from ddpjob_trainer.config import TrainerConfig
from ddpjob_trainer.data import DataSet, Feed, Preparation
from ddpjob_trainer.distributed import Gang
from ddpjob_trainer.evaluate import count_correct
from ddpjob_trainer.report import Reporter, StepTimer
from ddpjob_trainer.state import TrainingState
from ddpjob_trainer.stop import StopAgreement


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Everything that one rank needs to train. `replica` is the model wrapped in DDP; `state.model` is the same, bare."""

    config: TrainerConfig
    gang: Gang
    data: DataSet
    preparation: Preparation
    feed: Feed
    state: TrainingState
    replica: nn.Module
    checkpoints: CheckpointFolder | None
    report: Reporter
    stop: StopAgreement

    def run(self) -> bool:
        """Train from the state's step to the end; False if all ranks agreed to stop before it."""
        config, state, report = self.config, self.state, self.report
        steps_per_epoch = self.feed.sampling.steps_per_epoch
        total_steps = config.epochs * steps_per_epoch
        for step in range(state.step, total_steps):
            if self.stop.reached():
                self.save()
                return False
            logged = (step + 1) % config.log_every_steps == 0 or step + 1 == total_steps
            timer = StepTimer(self.gang.device, exact=logged)

            timer.start()
            batch = self.feed.batch(step)
            timer.data_done()
            rate = optim.learning_rate_at(step, config, steps_per_epoch=steps_per_epoch)
            optim.set_learning_rate(state.optimizer, rate)
            state.optimizer.zero_grad()
            loss = batch.loss(self.replica(batch.images_BCHW))
            torch.autograd.backward(loss)
            state.optimizer.step()
            timer.compute_done()

            state.step = step + 1
            report.step_done(state.step, num_samples=len(self.feed.sampling.global_batch(step)))
            if logged:
                self.log(loss.detach(), timer)
            if is_due(state.step, config.verify_replicas_every_steps):
                replicas.verify(state.model, self.gang, step=state.step)
            end_of_epoch = state.step % steps_per_epoch == 0
            if end_of_epoch or is_due(state.step, config.checkpoint_every_steps):
                self.save()
            if end_of_epoch and state.step < total_steps:
                self.evaluate()
        self.stop.finish()
        self.evaluate()
        return True

    def log(self, loss: torch.Tensor, timer: StepTimer) -> None:
        """Rank 0's log line. The mean of the ranks' losses is the mean over the step's samples (see Batch)."""
        mean_loss = (self.gang.sum_(loss) / self.gang.world_size).item()
        self.report.log(loss=mean_loss, data_seconds=timer.data_seconds, compute_seconds=timer.compute_seconds)

    def save(self) -> None:
        """Commit a checkpoint of this step, if there is a folder for it. Rank 0 writes; the others go on."""
        self.gang.broadcast_buffers(self.state.model)
        if self.checkpoints is not None and self.gang.rank == 0:
            with self.report.phase(contract.PHASE_CHECKPOINT):
                self.checkpoints.save(self.state.step, self.state.to_bytes())
            self.report.saved(self.state.step)

    def evaluate(self) -> None:
        """Tell the accuracy on the held-out split."""
        self.gang.broadcast_buffers(self.state.model)
        with self.report.phase(contract.PHASE_EVALUATE):
            correct = count_correct(self.state.model, self.data.test, self.preparation, self.gang)
        total = len(self.data.test)
        self.report.say(
            f"after {self.state.step} steps: accuracy {100 * correct / total:.2f} %"
            f" ({correct} of {total} held-out samples)"
        )


def is_due(step: int, every_steps: int) -> bool:
    """Whether something that happens every so many steps (0: never) happens after this one."""
    return every_steps > 0 and step % every_steps == 0
