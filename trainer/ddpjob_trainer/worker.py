"""One rank from its start to its end: meet the others, set up, train, and leave with the right last words."""

import faulthandler
import os
import signal
import socket
from pathlib import Path
from typing import NoReturn

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpjob_ranks import checks, contract, distributed
from ddpjob_ranks.distributed import Gang, Rendezvous
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.stop import StopAgreement, StopRequest
from ddpjob_ranks.watch.timeline import Phase, Timeline, open_events, process_began
from ddpjob_ranks.watch.watchdog import Watchdog
from ddpjob_trainer import ending, evaluate, numerics, parallel, recipes, sameness
from ddpjob_trainer.checkpoints import folder
from ddpjob_trainer.checkpoints.writer import CheckpointWriter
from ddpjob_trainer.config import TrainerConfig
from ddpjob_trainer.data import Batch, Feed, FeedAhead
from ddpjob_trainer.loop import Training
from ddpjob_trainer.numerics import Numerics
from ddpjob_trainer.report import Reporter
from ddpjob_trainer.sampling import Sampling, check_shares
from ddpjob_trainer.state import TrainingState, to_bytes


def run(config: TrainerConfig, worker: Worker, *, imported_from: float | None = None) -> NoReturn:
    """Train as this rank, and end the process with its exit code.

    `imported_from` is when this module's import began, on the monotonic clock.
    """
    faulthandler.enable()
    timeline = Timeline(open_events(os.environ, rank=worker.rank), rank=worker.rank, began=process_began())
    timeline.enter(Phase.IMPORT, now=imported_from)
    watchdog = Watchdog(config.limits, timeline)
    training = None
    try:
        timeline.enter(Phase.RENDEZVOUS)
        met = meet(worker, config)
        timeline.enter(Phase.CONNECT)
        watchdog.watch(met.store, worker)
        with watchdog, distributed.join(met) as gang, Reporter(enabled=worker.rank == 0) as report:
            training = set_up(config, worker, gang, report, timeline)
            complete = training.run()
            ending.tell(training, complete=complete)
            timeline.enter(Phase.LEAVE)
        # All ranks have parted. srun and others send SIGTERM as soon as one rank has left, which is no request any more.
        faulthandler.unregister(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ending.leave(contract.EXIT_SUCCESS if complete else ending.stopped(training))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the process, with last words
        ending.fail(error, worker, watchdog, training)


def meet(worker: Worker, config: TrainerConfig) -> Rendezvous:
    """Wait for the other ranks, which must be the same program and configuration."""
    numerics.fix_nccl(config)
    return distributed.meet(worker, config.limits, sameness.of_program(config))


def set_up(
    config: TrainerConfig, worker: Worker, gang: Gang, report: Reporter, timeline: Timeline | None = None
) -> Training:
    """Everything up to the first step: data, model, DDP, and the newest checkpoint if there is one."""
    timeline = timeline or Timeline()
    timeline.enter(Phase.SETUP)
    checks.check_group(gang)  # here rather than where the group is made: the watchdog is watching by now
    config = config.for_world_size(gang.world_size)
    report.say("config " + config.model_dump_json(by_alias=True))
    _tell_topology(worker, gang, report)
    recipe = recipes.find(config.recipe)
    numbers = numerics.choose(config, gang, heavy=recipe.heavy)
    numbers.set_switches()
    report.say(f"profile {numbers}")
    torch.set_num_threads(min(torch.get_num_threads(), recipe.max_threads))
    timeline.enter(Phase.LOAD)
    data = recipe.load(Path(os.environ.get(contract.DDPJOB_DATA_DIR) or contract.DATA_DIR)).to(gang.device)
    sameness.check_data(gang, data)
    timeline.enter(Phase.SETUP)
    sampling = Sampling(
        num_samples=len(data.train),
        global_batch_size=config.global_batch_size,
        seed=config.seed,
        device=data.train.device,
    )
    feed = Feed(
        split=data.train,
        sampling=sampling,
        rank=gang.rank,
        world_size=gang.world_size,
        label_smoothing=recipe.label_smoothing,
    )
    total_steps = config.epochs * sampling.steps_per_epoch
    torch.manual_seed(config.seed)
    model = recipe.model(data.num_classes)
    recipe.initialise(model, data)
    model = numbers.place(parallel.synchronise_batch_norm(model, config, gang.device))
    check_shares(model, sampling, world_size=gang.world_size)
    state = TrainingState(
        model=model,
        optimizer=recipe.optimizer(model, config),
        config=config,
        num_samples=len(data.train),
        world_size=gang.world_size,
    )
    replica = parallel.replicate(model, config, gang)
    before = to_bytes(state.content())  # rank 0's weights, which DDP has given to all
    timeline.enter(Phase.COMPILE)
    trial = feed.batch(0)
    if numbers.compile:
        batches = [trial, feed.batch(sampling.steps_per_epoch - 1)]
        held_out = evaluate.shapes(data.test, gang)
        told = numerics.compile_model(replica, batches, held_out, recipe.predict, numbers, gang, moved=timeline.moved)
        report.say(told)
    timeline.enter(Phase.SETUP)
    _settle_buckets(replica, trial, numbers)
    state.optimizer.zero_grad()
    state.load_bytes(before)  # BatchNorm took note of the batches
    checkpoints = folder.from_environment(os.environ, keep=config.keep_checkpoints, report=report.say)
    resumed = _resume(state, checkpoints, gang, report, total_steps=total_steps)
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
    timeline.begin_training(step=state.step)
    return Training(
        config=config,
        gang=gang,
        data=data,
        recipe=recipe,
        numerics=numbers,
        feed=FeedAhead(feed, num_steps=total_steps) if data.on_host else feed,  # only now: at the right step
        state=state,
        replica=replica,
        checkpoints=checkpoints,
        writer=CheckpointWriter(checkpoints if gang.rank == 0 else None, report, gang.device),
        report=report,
        stop=stop,
        timeline=timeline,
    )


def _settle_buckets(replica: DistributedDataParallel, batch: Batch, numbers: Numerics) -> None:
    """One backward pass thrown away.

    DDP plans its buckets anew after the first one, and another plan sums gradients in another order. With the new plan
    from step 0 on, a resumed run has the same bits as one that was never interrupted.
    """
    with numbers.autocast():
        loss = batch.loss(replica(batch.images_BCHW))
    torch.autograd.backward(loss)


def _resume(
    state: TrainingState,
    checkpoints: folder.CheckpointFolder | None,
    gang: Gang,
    report: Reporter,
    *,
    total_steps: int,
) -> bool:
    """Rank 0 reads the newest checkpoint and gives it to all. Returns whether there was one."""
    if checkpoints is None:
        report.say(f"no checkpoints: {contract.DDPJOB_CHECKPOINT_DIR} is not set, so a restart begins at step 0")
    else:
        # Whether it fits and is not done yet comes before the claim, which ends a run that may be under way there.
        if gang.rank == 0:
            checkpoints.claim.check()
        manifest, saved_by = _load_newest(state, checkpoints, gang)
        if state.step < total_steps:
            if gang.rank == 0:
                checkpoints.open()
            _, saved_since_by = _load_newest(state, checkpoints, gang, known=manifest)
            saved_by = saved_since_by or saved_by
        if saved_by:
            report.say(f"resumed from step {state.step} in {checkpoints.path}, {saved_by}")
            return True
        report.say(f"no whole checkpoint in {checkpoints.path}: starting at step 0")
    _warm_start(state, gang, report)
    return False


def _load_newest(
    state: TrainingState, checkpoints: folder.CheckpointFolder, gang: Gang, known: folder.Manifest | None = None
) -> tuple[folder.Manifest | None, str]:
    """Take over the newest checkpoint, unless it is the one that is known; its manifest on rank 0, and who saved it."""
    newest = checkpoints.load_newest(known) if gang.rank == 0 else None
    payload = gang.broadcast_bytes(None if newest is None else newest[1])
    saved_by = "" if payload is None else state.load_bytes(payload)
    return known if newest is None else newest[0], saved_by


def _warm_start(state: TrainingState, gang: Gang, report: Reporter) -> None:
    """Weights of `initialCheckpoint`, if it is set, on all ranks; everything else as at step 0."""
    path = Path(state.config.initial_checkpoint)
    if not state.config.initial_checkpoint:
        return
    payload = None
    if gang.rank == 0:
        try:
            payload = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
            raise ConfigError(f"initialCheckpoint {path}: cannot be read on rank 0: {error.strerror}") from error
    payload = gang.broadcast_bytes(payload)
    assert payload is not None
    state.load_weights(payload, source=str(path))
    report.say(f"initial weights from {path}")


def _tell_topology(worker: Worker, gang: Gang, report: Reporter) -> None:
    device = torch.cuda.get_device_name(gang.device) if gang.device.type == "cuda" else "cpu"
    rows = gang.all_gather((worker.rank, socket.gethostname(), worker.local_rank, str(gang.device), device))
    report.say(f"launcher {worker.launcher}, world size {worker.world_size}, torch {torch.__version__}")
    lines = ["rank  local  device    host"]
    for rank, host, local_rank, place, name in rows:
        lines.append(f"{rank:>4}  {local_rank:>5}  {place:<8}  {host}" + (f"  {name}" if name != place else ""))
    report.say("\n".join(lines))
