"""One rank from its start to its end: meet the others, set up, train, and leave with the right last words."""

import faulthandler
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer import checkpoint, contract, distributed, optim, recipes, replicas, termination
from ddpjob_trainer.claim import Fenced
from ddpjob_trainer.config import ConfigError, TrainerConfig
from ddpjob_trainer.data import Feed
from ddpjob_trainer.distributed import Gang
from ddpjob_trainer.launch import Worker
from ddpjob_trainer.loop import Training
from ddpjob_trainer.report import Reporter
from ddpjob_trainer.sampling import Sampling
from ddpjob_trainer.state import TrainingState
from ddpjob_trainer.stop import StopAgreement, StopRequest


def run(config: TrainerConfig, worker: Worker) -> int:
    """Train as this rank. Returns the exit code; a failure ends the process at once."""
    faulthandler.enable()
    try:
        with distributed.join(worker) as gang, Reporter(enabled=worker.rank == 0) as report:
            training = set_up(config, worker, gang, report)
            complete = training.run()
            if complete:
                report.say(f"weights sha256 {replicas.model_digest(training.state.model)}")
                report.end()
        if complete:
            return contract.EXIT_SUCCESS
        return _stopped(training)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the process, with last words
        _fail(error, worker)


def set_up(config: TrainerConfig, worker: Worker, gang: Gang, report: Reporter) -> Training:
    """Everything up to the first step: data, model, DDP, and the newest checkpoint if there is one."""
    report.say("config " + config.model_dump_json(by_alias=True))
    _tell_topology(worker, gang, report)
    recipe = recipes.find(config.recipe)
    torch.set_num_threads(min(torch.get_num_threads(), recipe.max_threads))
    data = recipe.load(Path(os.environ.get(contract.DDPJOB_DATA_DIR) or contract.DATA_DIR)).to(gang.device)
    sampling = Sampling(
        num_samples=len(data.train),
        global_batch_size=config.global_batch_size,
        seed=config.seed,
        device=gang.device,
    )
    feed = Feed(
        split=data.train,
        sampling=sampling,
        preparation=recipe.preparation,
        rank=gang.rank,
        world_size=gang.world_size,
    )
    torch.manual_seed(config.seed)
    model = recipe.model(data.num_classes).to(gang.device)
    state = TrainingState(
        model=model, optimizer=optim.make_optimizer(model, config), config=config, num_samples=len(data.train)
    )
    replica = DistributedDataParallel(
        model,
        device_ids=[gang.device] if gang.device.type == "cuda" else None,
        forward_sync_buffers=False,  # a broadcast per step for what evaluation and saving alone need; they do it
        gradient_as_bucket_view=True,
    )
    _settle_buckets(replica, feed, state)
    checkpoints = checkpoint.from_environment(os.environ, keep=config.keep_checkpoints, tell=report.say)
    resumed = _resume(state, checkpoints, gang, report)
    total_steps = config.epochs * sampling.steps_per_epoch
    if state.step >= total_steps:
        report.say(
            f"nothing to train: the checkpoint is of step {state.step} of {total_steps};"
            " rename the job or remove its checkpoint folder to start afresh"
        )
    stop = StopAgreement(gang, StopRequest())  # until here there is nothing to save, and SIGTERM ends the process
    gang.barrier()  # from the first progress line on, every rank honours it
    report.begin(
        step=state.step,
        total_steps=total_steps,
        steps_per_epoch=sampling.steps_per_epoch,
        checkpoint_step=state.step if resumed else None,
    )
    return Training(
        config=config,
        gang=gang,
        data=data,
        preparation=recipe.preparation,
        feed=feed,
        state=state,
        replica=replica,
        checkpoints=checkpoints,
        report=report,
        stop=stop,
    )


def _settle_buckets(replica: DistributedDataParallel, feed: Feed, state: TrainingState) -> None:
    """One backward pass thrown away.

    DDP plans its buckets anew after the first one, and another plan sums gradients in another order. With the new plan
    from step 0 on, a resumed run has the same bits as one that was never interrupted.
    """
    before = state.to_bytes()
    batch = feed.batch(0)
    torch.autograd.backward(batch.loss(replica(batch.images_BCHW)))
    state.optimizer.zero_grad()
    state.load_bytes(before)  # BatchNorm took note of the batch


def _resume(
    state: TrainingState, checkpoints: checkpoint.CheckpointFolder | None, gang: Gang, report: Reporter
) -> bool:
    """Rank 0 reads the newest checkpoint and gives it to all. Returns whether there was one."""
    if checkpoints is None:
        report.say(f"no checkpoints: {contract.DDPJOB_CHECKPOINT_DIR} is not set, so a restart begins at step 0")
        return False
    payload = None
    if gang.rank == 0:
        checkpoints.open()
        newest = checkpoints.load_newest()
        payload = None if newest is None else newest[1]
    payload = gang.broadcast_bytes(payload)
    if payload is None:
        report.say(f"no checkpoint yet in {checkpoints.path}: starting at step 0")
        return False
    state.load_bytes(payload)
    report.say(f"resumed from step {state.step} in {checkpoints.path}")
    return True


def _tell_topology(worker: Worker, gang: Gang, report: Reporter) -> None:
    device = torch.cuda.get_device_name(gang.device) if gang.device.type == "cuda" else "cpu"
    rows = gang.all_gather((worker.rank, socket.gethostname(), worker.local_rank, str(gang.device), device))
    report.say(f"launcher {worker.launcher}, world size {worker.world_size}, torch {torch.__version__}")
    report.say(
        "\n".join(
            [
                "rank  local  device    host",
                *(
                    f"{rank:>4}  {local_rank:>5}  {device:<8}  {host}" + (f"  {name}" if name != device else "")
                    for rank, host, local_rank, device, name in rows
                ),
            ]
        )
    )


def _stopped(training: Training) -> int:
    """The exit code of a run that was asked to stop, after all ranks have parted: so rank 0's checkpoint is there."""
    step = training.state.step
    if training.checkpoints is None:
        training.report.say(f"stopped on request after step {step}; nothing is saved")
        return contract.EXIT_TERMINATED
    training.report.say(f"stopped on request after step {step}; the checkpoint of it is complete")
    if training.gang.rank == 0:
        termination.write(f"{contract.TERMINATION_CHECKPOINT_PREFIX}{step}", echo=False)
    return contract.EXIT_CHECKPOINTED


def _fail(error: BaseException, worker: Worker) -> NoReturn:
    """Say what happened and end without the usual teardown, which would wait for ranks that may be gone.

    The message is written before this process's connections close: no other rank can fail of it earlier.
    """
    echo = distributed.is_peer_loss(error)
    code, text = contract.EXIT_PROGRAM_ERROR, termination.of_exception(error, rank=worker.rank, echo=echo)
    if isinstance(error, ConfigError | Fenced):
        code = contract.EXIT_BAD_CONFIG if isinstance(error, ConfigError) else contract.EXIT_FENCED
        text = f"rank {worker.rank}\n{error}"
        print(error, file=sys.stderr)
    else:
        traceback.print_exception(error)
    if echo:
        code = contract.EXIT_PEER_LOST
        print(f"rank {worker.rank}: lost a peer; the cause is on another rank", file=sys.stderr)
    elif isinstance(error, KeyboardInterrupt):
        code = 128 + signal.SIGINT
    termination.write(text, echo=echo)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
