"""One rank from its start to its end: find the other ranks, set up, train, and exit with the right code and message."""

import copy
import faulthandler
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from ddpjob_session.checkpoints import folder
from ddpjob_session.checkpoints.writer import CheckpointWriter
from ddpjob_session.report import Reporter
from ddpjob_session.state import from_bytes
from ddpjob_trainer import consistency, ending, evaluate, numerics, parallel, recipes
from ddpjob_trainer.config import ResolvedConfig, TrainerConfig
from ddpjob_trainer.data import Batch, DataSet, Feed, FeedAhead
from ddpjob_trainer.loop import Training
from ddpjob_trainer.numerics import Numerics
from ddpjob_trainer.recipes import Recipe
from ddpjob_trainer.sampling import Sampling, check_shares
from ddpjob_trainer.state import TrainingState


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
        found = rendezvous(worker, config)
        timeline.enter(Phase.CONNECT)
        watchdog.watch(found.store, worker)
        with watchdog, distributed.join(found) as gang, Reporter(enabled=worker.rank == 0) as report:
            training = set_up(config, worker, gang, report, timeline)
            complete = training.run()
            ending.report_end(training, complete=complete)
            timeline.enter(Phase.LEAVE)
        # All ranks have left the group. srun and others send SIGTERM as soon as one rank has exited: not a request to stop.
        training.stop.request.ignore()
        ending.leave(contract.EXIT_SUCCESS if complete else ending.stopped(training))
    except BaseException as error:  # noqa: BLE001 - any exception ends the process, with a termination message
        ending.fail(error, worker, watchdog, training)


def rendezvous(worker: Worker, config: TrainerConfig) -> Rendezvous:
    """Wait for the other ranks, which must run the same program with the same configuration."""
    numerics.fix_nccl(config)
    return distributed.rendezvous(worker, config.limits, consistency.facts_of_program(config))


def set_up(
    given: TrainerConfig, worker: Worker, gang: Gang, report: Reporter, timeline: Timeline | None = None
) -> Training:
    """Everything up to the first step: data, model, DDP, and the newest checkpoint if there is one."""
    timeline = timeline or Timeline()
    timeline.enter(Phase.SETUP)
    checks.check_group(gang)  # here rather than where the group is created: the watchdog is active by now
    recipe = recipes.find(given.recipe)
    config = given.resolve(recipe.defaults, world_size=gang.world_size)
    consistency.check_recipe(gang, config)
    report.say("config " + config.model_dump_json(by_alias=True))
    _report_topology(worker, gang, report)
    numbers = _choose_numerics(config, recipe, gang, report)
    data, fingerprints = _load_data(config, recipe, gang, timeline)
    feed = _feed(config, data, gang)
    total_steps = config.epochs * feed.sampling.steps_per_epoch
    state, replica = _build_model(config, recipe, numbers, data, fingerprints, feed.sampling, gang)
    state.check_loadable()
    with _restored_afterwards(state):
        trial = feed.batch(0)
        if numbers.compile:
            held_out = evaluate.shapes(data.test, gang, batch_size=config.evaluation_batch_size)
            _compile(replica, recipe, numbers, trial, feed, held_out, gang, report, timeline)
        _settle_buckets(replica, trial, recipe, numbers)
    checkpoints = folder.from_environment(os.environ, keep=config.keep_checkpoints, report=report.say)
    resumed = _resume(state, checkpoints, gang, report, total_steps=total_steps, moved=timeline.moved)
    stop = StopAgreement(gang, StopRequest())  # until here there is nothing to save, and SIGTERM ends the process
    gang.barrier()  # from the first progress line on, every rank honours SIGTERM
    report.begin(
        step=state.step,
        total_steps=total_steps,
        steps_per_epoch=feed.sampling.steps_per_epoch,
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
        writer=CheckpointWriter(
            checkpoints if gang.rank == 0 else None, report, gang.device, newest_step=state.step if resumed else None
        ),
        report=report,
        stop=stop,
        timeline=timeline,
    )


def _choose_numerics(config: ResolvedConfig, recipe: Recipe, gang: Gang, report: Reporter) -> Numerics:
    """The profile's meaning on these devices, with the process's switches and threads set accordingly."""
    numbers = numerics.choose(config, gang, heavy=recipe.heavy)
    numbers.set_switches()
    torch.set_num_threads(min(torch.get_num_threads(), recipe.max_threads))
    report.say(f"profile {numbers}")
    return numbers


def _load_data(
    config: ResolvedConfig, recipe: Recipe, gang: Gang, timeline: Timeline
) -> tuple[DataSet, Mapping[str, str]]:
    """The data set, which must be the same on all ranks, and its fingerprints."""
    timeline.enter(Phase.LOAD)
    data = recipe.load(Path(os.environ.get(contract.DDPJOB_DATA_DIR) or contract.DATA_DIR), config).to(gang.device)
    fingerprints = consistency.check_data(gang, data)
    timeline.enter(Phase.SETUP)
    return data, fingerprints


def _feed(config: ResolvedConfig, data: DataSet, gang: Gang) -> Feed:
    """This rank's part of each step."""
    sampling = Sampling(
        num_samples=len(data.train),
        global_batch_size=config.global_batch_size,
        seed=config.seed,
        device=data.train.device,
    )
    return Feed(split=data.train, sampling=sampling, rank=gang.rank, world_size=gang.world_size)


def _build_model(
    config: ResolvedConfig,
    recipe: Recipe,
    numbers: Numerics,
    data: DataSet,
    fingerprints: Mapping[str, str],
    sampling: Sampling,
    gang: Gang,
) -> tuple[TrainingState, DistributedDataParallel]:
    """Model and optimizer as at step 0, and the model in DDP, which gives all ranks the weights of rank 0."""
    torch.manual_seed(config.seed)
    model = recipe.model(data.num_classes)
    recipe.initialise(model, data)
    model = numbers.to_device(parallel.synchronise_batch_norm(model, config, gang.device))
    check_shares(model, sampling, world_size=gang.world_size)
    state = TrainingState(
        model=model,
        optimizer=recipe.optimizer(model, config),
        config=config,
        data=fingerprints,
        world_size=gang.world_size,
    )
    return state, parallel.replicate(model, config, gang)


@contextmanager
def _restored_afterwards(state: TrainingState) -> Iterator[None]:
    """Restore the state at the end of the context: trial batches change gradients and statistics of BatchNorm."""
    before = copy.deepcopy(state.content())
    yield
    state.optimizer.zero_grad()
    state.load(before)


def _compile(
    replica: DistributedDataParallel,
    recipe: Recipe,
    numbers: Numerics,
    trial: Batch,
    feed: Feed,
    held_out: list[torch.Tensor],
    gang: Gang,
    report: Reporter,
    timeline: Timeline,
) -> None:
    """Compile the model for all shapes of batches to come."""
    timeline.enter(Phase.COMPILE)
    batches = [trial, feed.batch(feed.sampling.steps_per_epoch - 1)]
    report.say(numerics.compile_model(replica, batches, held_out, recipe, numbers, gang, moved=timeline.moved))
    timeline.enter(Phase.SETUP)


def _settle_buckets(replica: DistributedDataParallel, batch: Batch, recipe: Recipe, numbers: Numerics) -> None:
    """One backward pass whose gradients are discarded.

    DDP plans its buckets again after the first backward pass, and another plan sums gradients in another order. With the
    final plan from step 0 on, a resumed run has the same bits as one that was never interrupted.
    """
    with numbers.autocast():
        loss = recipe.loss(replica, batch)
    torch.autograd.backward(loss)


def _resume(
    state: TrainingState,
    checkpoints: folder.CheckpointFolder | None,
    gang: Gang,
    report: Reporter,
    *,
    total_steps: int,
    moved: Callable[[], None],
) -> bool:
    """Load the newest checkpoint, read by rank 0, on all ranks. Returns whether there was one.

    `moved` is called while files are read and sent, which takes longer than the watchdog's limit for some of them.
    """
    if checkpoints is None:
        report.say(
            f"no checkpoints: neither {contract.DDPJOB_CHECKPOINT_DIR} nor {contract.DDPJOB_CHECKPOINT_URI} is set, so a restart begins at step 0"
        )
    else:
        # Whether it fits and has steps left is checked before the folder is claimed, which ends a run that still uses it.
        if gang.rank == 0:
            checkpoints.claim.check()
        manifest, saved_by = _load_newest(state, checkpoints, gang, moved)
        if state.step < total_steps:
            if gang.rank == 0:
                checkpoints.open()
            _, saved_since_by = _load_newest(state, checkpoints, gang, moved, known=manifest)
            saved_by = saved_since_by or saved_by
        if saved_by:
            report.say(f"resumed from step {state.step} in {checkpoints.location}, {saved_by}")
            if state.step >= total_steps:
                report.say(
                    f"nothing to train: the checkpoint is of step {state.step} of {total_steps};"
                    " rename the job or remove its checkpoint folder to start from step 0"
                )
            return True
        report.say(f"no complete checkpoint in {checkpoints.location}: starting at step 0")
    _warm_start(state, gang, report, moved)
    return False


def _load_newest(
    state: TrainingState,
    checkpoints: folder.CheckpointFolder,
    gang: Gang,
    moved: Callable[[], None],
    known: folder.Manifest | None = None,
) -> tuple[folder.Manifest | None, str]:
    """Load the newest checkpoint, unless it is the one that is known. Returns its manifest on rank 0, and who saved it."""
    newest = checkpoints.load_newest(known, moved=moved) if gang.rank == 0 else None
    payload = gang.broadcast_bytes(None if newest is None else newest[1], moved)
    saved_by = "" if payload is None else state.load(from_bytes(payload))
    return known if newest is None else newest[0], saved_by


def _warm_start(state: TrainingState, gang: Gang, report: Reporter, moved: Callable[[], None]) -> None:
    """Load the weights of `initialCheckpoint`, if it is set, on all ranks; everything else stays as at step 0."""
    place = state.config.initial_checkpoint
    if not place:
        return
    payload = None
    if gang.rank == 0:
        try:
            payload = folder.read_anywhere(place, moved)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
            raise ConfigError(f"initialCheckpoint {place}: cannot be read on rank 0: {error.strerror}") from error
    weights = gang.broadcast_bytes(payload, moved)
    assert weights is not None
    state.load_weights(weights, source=place)
    report.say(f"initial weights from {place}")


def _report_topology(worker: Worker, gang: Gang, report: Reporter) -> None:
    device = torch.cuda.get_device_name(gang.device) if gang.device.type == "cuda" else "cpu"
    rows = gang.all_gather((worker.rank, socket.gethostname(), worker.local_rank, str(gang.device), device))
    report.say(f"launcher {worker.launcher}, world size {worker.world_size}, torch {torch.__version__}")
    lines = ["rank  local  device    host"]
    for rank, host, local_rank, place, name in rows:
        lines.append(f"{rank:>4}  {local_rank:>5}  {place:<8}  {host}" + (f"  {name}" if name != place else ""))
    report.say("\n".join(lines))
