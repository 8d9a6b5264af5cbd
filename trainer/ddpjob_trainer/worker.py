"""One rank of the built-in training from its start to its end: join the other ranks, set up, train, and exit."""

import copy
import os
import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ddpjob_ranks import contract
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.watch import evidence
from ddpjob_ranks.watch.timeline import Phase
from ddpjob_session import ending, observers
from ddpjob_session.checkpoints import folder
from ddpjob_session.run import Run, joined
from ddpjob_session.steps import Steps
from ddpjob_trainer import consistency, evaluate, loading, numerics, optim, parallel, recipes
from ddpjob_trainer.config import ResolvedConfig, TrainerConfig
from ddpjob_trainer.data import Batch, Feed, ImageData, Images
from ddpjob_trainer.loading import UNKNOWN, Data, LoadedFeed, Samples
from ddpjob_trainer.loop import Training
from ddpjob_trainer.numerics import Numerics
from ddpjob_trainer.recipes import Recipe
from ddpjob_trainer.sampling import Sampling, check_shares
from ddpjob_trainer.state import TRAINING_DATA, TrainingState


def run(config: TrainerConfig, worker: Worker, *, imported_from: float | None = None) -> NoReturn:
    """Train as this rank, and end the process with its exit code.

    `imported_from` is when this module's import began, on the monotonic clock.
    """
    numerics.fix_nccl(config)
    same = consistency.facts_of_program(config)
    with joined(worker, config.limits, same, keep=config.keep_checkpoints, imported_from=imported_from) as session:
        training = set_up(config, worker, session)
        complete = training.run()
    ending.leave(contract.EXIT_SUCCESS if complete else session.stopped())


def set_up(given: TrainerConfig, worker: Worker, session: Run) -> Training:
    """Everything up to the first step: data, model, DDP, and the newest checkpoint if there is one."""
    gang, report = session.gang, session.report
    recipe, config = recipes.load(given, world_size=gang.world_size)
    consistency.check_recipe(gang, config)
    report.say("config " + config.model_dump_json(by_alias=True))
    _report_topology(worker, session)
    numbers = _choose_numerics(config, recipe, session)
    source, data, fingerprints = _load_data(config, recipe, session)
    feed = _feed(config, data, gang)
    total_steps = config.epochs * feed.sampling.steps_per_epoch
    state, replica = _build_model(config, recipe, numbers, source, fingerprints, feed.sampling, gang)
    state.check_loadable()
    if numbers.compile or gang.world_size > 1:
        with _restored_afterwards(state):
            trial = feed.batch(0)
            if numbers.compile:
                # The moving average is a copy of the model that is not compiled.
                held_out = data.test if state.average is None else None
                _compile(replica, recipe, numbers, config, trial, feed, held_out, session)
            # As in the first step: a layer that is fixed later is in the buckets, too.
            recipe.before_step(state.model, 0.0)
            if gang.world_size > 1:
                _settle_buckets(replica, trial.parts(config.micro_batch_size)[0], recipe, numbers)
    session.restore(state)
    if config.initial_checkpoint and not session.resumed:
        _warm_start(state, session)
    if gang.rank == 0:
        report.watch(observers.load(config.observers))
    session.begin(
        total_steps=total_steps,
        steps_per_epoch=feed.sampling.steps_per_epoch,
        settings=config.model_dump(by_alias=True),
        profile_steps=config.profile_steps,
        replicas=[replica],
    )
    return Training(
        config=config,
        session=session,
        data=data,
        recipe=recipe,
        numerics=numbers,
        # Workers read ahead from here on: the trial batches above would start some whose further batches nobody uses.
        feed=LoadedFeed(feed, feed.split, num_steps=total_steps) if isinstance(feed.split, Samples) else feed,
        state=state,
        replica=replica,
        steps=Steps(session, total_steps, first_phase=Phase.DATA),
    )


def _choose_numerics(config: ResolvedConfig, recipe: Recipe, session: Run) -> Numerics:
    """The profile's meaning on these devices, with the process's switches and threads set accordingly."""
    numbers = numerics.choose(config, session.gang, heavy=recipe.heavy)
    numbers.set_switches()
    torch.set_num_threads(min(torch.get_num_threads(), recipe.max_threads))
    session.report.say(f"profile {numbers}")
    return numbers


def _load_data(
    config: ResolvedConfig, recipe: Recipe, session: Run
) -> tuple[Data | ImageData, ImageData, Mapping[str, str]]:
    """The data as the model sees them and as they are fed, and their fingerprints, which must be the same on all ranks."""
    session.timeline.enter(Phase.LOAD)
    for seed in (random.seed, np.random.seed, torch.manual_seed):  # data that are generated are the same on all ranks
        seed(config.seed)
    found = recipe.data(Path(os.environ.get(contract.DDPJOB_DATA_DIR) or contract.DATA_DIR), config)
    if not isinstance(found, Data | ImageData):
        raise ConfigError(
            f"recipe {config.recipe}: data() returned {type(found).__name__}; expected ddpjob.recipe.Data(train=..., test=...)"
            " of two map-style data sets, or ImageData"
        )
    data = loading.prepare(found, config, session.gang.device)
    fingerprints = consistency.check_data(session.gang, data)
    if UNKNOWN in fingerprints[TRAINING_DATA]:
        session.report.say(
            "of the training data only the number of samples is compared when a run resumes: Data.version is not set"
        )
    session.timeline.enter(Phase.SETUP)
    return data if isinstance(found, ImageData) else found, data, fingerprints


def _feed(config: ResolvedConfig, data: ImageData, gang: Gang) -> Feed:
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
    source: Data | ImageData,
    fingerprints: Mapping[str, str],
    sampling: Sampling,
    gang: Gang,
) -> tuple[TrainingState, nn.Module]:
    """Model and optimizer as at step 0, and the model in DDP, which gives all ranks the weights of rank 0.

    One rank alone needs no DDP, which would take 0.4 ms of a step of 8.7 ms (digits on a CPU) for the same bits.
    """
    torch.manual_seed(config.seed)
    model = recipe.model(source)
    model = numbers.to_device(parallel.synchronise_batch_norm(model, config, gang.device))
    check_shares(model, sampling, world_size=gang.world_size, micro_batch_size=config.micro_batch_size)
    replica = parallel.replicate(model, config, gang) if gang.world_size > 1 else model
    state = TrainingState(
        model=model,
        optimizer=optim.checked(recipe.optimizer(model, config), recipe=config.recipe),
        config=config,
        data=fingerprints,
        world_size=gang.world_size,
        average=average_of(model, config.ema_decay) if config.ema_decay else None,
        scaler=numbers.loss_scaler(),
    )
    return state, replica


def average_of(model: nn.Module, decay: float) -> AveragedModel:
    """A moving average of the weights. The buffers are the model's own ones.

    torch's copies would get the same values after each step of the optimizer. Then only rank 0 would know its statistics of
    BatchNorm after a step that the other ranks have completed already (`ddpjob_session.memory.at_exit`).
    """
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]  # torch has no types for it
    for copied, original in zip(average.module.modules(), model.modules(), strict=True):
        for name, buffer in original.named_buffers(recurse=False):
            setattr(copied, name, buffer)
    return average


@contextmanager
def _restored_afterwards(state: TrainingState) -> Iterator[None]:
    """Restore the state at the end of the context: trial batches change gradients and statistics of BatchNorm."""
    before = copy.deepcopy(state.content())
    yield
    state.optimizer.zero_grad()
    state.load(before)


def _compile(
    replica: nn.Module,
    recipe: Recipe,
    numbers: Numerics,
    config: ResolvedConfig,
    trial: Batch,
    feed: Feed,
    held_out: Images | None,
    session: Run,
) -> None:
    """Compile the model for all shapes of batches to come."""
    gang, timeline = session.gang, session.timeline
    timeline.enter(Phase.COMPILE)
    whole, size = (trial, feed.batch(feed.sampling.steps_per_epoch - 1)), config.micro_batch_size
    batches = [part for batch in whole for part in {part.num_samples: part for part in batch.parts(size)}.values()]
    evaluated = evaluate.shapes(held_out, gang, batch_size=config.evaluation_batch_size) if held_out is not None else []
    session.report.say(numerics.compile_model(replica, batches, evaluated, recipe, numbers, gang, moved=timeline.moved))
    timeline.enter(Phase.SETUP)


def _settle_buckets(replica: nn.Module, batch: Batch, recipe: Recipe, numbers: Numerics) -> None:
    """One backward pass whose gradients are discarded.

    DDP plans its buckets again after the first backward pass, and another plan sums gradients in another order. With the
    final plan from step 0 on, a resumed run has the same bits as one that was never interrupted.
    """
    with numbers.autocast():
        loss = recipe.loss_of(replica, batch)
    torch.autograd.backward(loss)


def _warm_start(state: TrainingState, session: Run) -> None:
    """Load the weights of `initialCheckpoint` on all ranks; everything else stays as at step 0."""
    place, moved = state.config.initial_checkpoint, session.timeline.moved
    if "://" not in place:
        place = str(Path(place).absolute())
    payload, problem = None, ""
    if session.gang.rank == 0:
        try:
            payload = folder.read_anywhere(place, moved)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
            problem = str(error.strerror)
    if problem := session.gang.all_gather(problem)[0]:  # else the other ranks would report that they lost rank 0
        raise ConfigError(f"initialCheckpoint {place}: cannot be read on rank 0: {problem}")
    weights = session.gang.broadcast_bytes(payload, moved)
    assert weights is not None
    state.load_weights(weights, source=place)
    session.report.say(f"initial weights from {place}")


def _report_topology(worker: Worker, session: Run) -> None:
    own = worker.rank, socket.gethostname(), worker.local_rank, str(session.gang.device)
    rows = session.gang.all_gather((*own, evidence.device_name(session.gang.device)))
    lines = [f"launcher {worker.launcher}, world size {worker.world_size}, torch {torch.__version__}"]
    lines.append("rank  local  device    host")
    for rank, host, local_rank, place, name in rows:
        lines.append(f"{rank:>4}  {local_rank:>5}  {place:<8}  {host}" + (f"  {name}" if name != place else ""))
    session.report.say("\n".join(lines))
