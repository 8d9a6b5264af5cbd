"""From which states a run may resume or start."""

import errno
import math
import os
from typing import NamedTuple

import numpy as np
import pytest
import torch

from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.errors import ConfigError
from ddpjob_session.checkpoints import files
from ddpjob_session.report import Reporter
from ddpjob_session.run import Run
from ddpjob_session.state import from_bytes
from ddpjob_trainer import recipes, worker
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.export import write_tensors
from ddpjob_trainer.optim import sgd
from ddpjob_trainer.state import TrainingState
from support.fakes import fake
from support.saved_states import to_bytes

DATA = {"data": "100 samples, 00ff", "held-out data": "20 samples, 11ee"}


def state(
    *, width: int = 4, data: dict[str, str] = DATA, settings: dict[str, object] | None = None, **changes: object
) -> TrainingState:
    config = recipes.resolve(parse_config({"recipe": "digits", **changes}))
    config = config.model_copy(update={"settings": settings or {}})  # which digits does not have
    torch.manual_seed(width)
    model = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width))
    return TrainingState(
        model=model,
        optimizer=sgd(model, config),
        config=config,
        data=data,
        average=worker.average_of(model, config.ema_decay) if config.ema_decay else None,
        scaler=torch.amp.GradScaler("cpu", enabled=config.precision == "float16"),
    )


def after_a_step(trained: TrainingState) -> TrainingState:
    trained.model(torch.ones(3, 2)).sum().backward()
    trained.optimizer.step()
    trained.step += 1
    return trained


def test_everything_comes_back():
    saved = after_a_step(state())
    payload = to_bytes(saved.content())
    loaded = state(epochs=99, learningRate=0.5)
    assert loaded.load(from_bytes(payload)) == (
        "saved by 1 rank under profile fast; epochs was 15 and is 99; learningRate was 0.05 and is 0.5"
    )
    assert loaded.step == 1
    assert all(
        torch.equal(a, b)
        for a, b in zip(loaded.model.state_dict().values(), saved.model.state_dict().values(), strict=True)
    )
    assert not torch.equal(loaded.model.get_parameter("0.weight"), state().model.get_parameter("0.weight")), (
        "the step changed something"
    )
    for momenta in zip(loaded.optimizer.state.values(), saved.optimizer.state.values(), strict=True):
        assert torch.equal(momenta[0]["momentum_buffer"], momenta[1]["momentum_buffer"])


@pytest.mark.parametrize("before", [{}, {"precision": "float16"}, {"emaDecay": 0.9}])
def test_a_run_on_other_gpus_or_with_a_moving_average_resumes_with_what_it_needs(before):
    """`precision: auto` is bfloat16 on one kind of GPU and float16, which has a scaler, on another."""
    saved = after_a_step(state(**before))
    loaded = state(precision="float16", emaDecay=0.5)
    loaded.load(from_bytes(to_bytes(saved.content())))
    assert loaded.step == 1
    assert loaded.scaler.get_scale() == 2.0**16
    assert loaded.average is not None
    if "emaDecay" not in before:
        assert torch.equal(loaded.evaluated.get_parameter("0.weight"), loaded.model.get_parameter("0.weight"))
    after_a_step(loaded)
    loaded.average.update_parameters(loaded.model)


def test_a_checkpoint_without_fingerprints_of_its_data_is_of_an_older_release_and_is_loaded():
    content = after_a_step(state()).content()
    del content["data"]
    loaded = state()
    loaded.load(from_bytes(to_bytes(content)))
    assert loaded.step == 1


def test_other_held_out_data_are_reported_and_do_not_refuse_the_resume():
    loaded = state(data={**DATA, "held-out data": "21 samples, 22dd"})
    description = loaded.load(from_bytes(to_bytes(after_a_step(state()).content())))
    assert loaded.step == 1
    assert description.endswith(
        "; the held-out data have changed from 20 samples, 11ee to 21 samples, 22dd, so accuracies are not comparable"
    )


def test_another_value_of_a_setting_is_refused_and_a_new_or_removed_one_is_reported():
    content = to_bytes(after_a_step(state(settings={"noise": 0.2, "depth": 3})).content())
    with pytest.raises(ConfigError, match=r"settings\.noise was 0\.2 when it was saved and is 0\.5 now; set it back"):
        state(settings={"noise": 0.5, "depth": 3}).load(from_bytes(content))
    described = state(settings={"noise": 0.2, "width": 8}).load(from_bytes(content))
    assert described.endswith(
        "; settings.depth is gone and was not compared; settings.width is new and was not compared"
    )


def test_a_nested_setting_that_is_new_and_one_that_is_no_number_keep_nothing_from_resuming():
    content = to_bytes(after_a_step(state(settings={"net": {"depth": 3}, "bound": math.nan, "rate": 1})).content())
    described = state(settings={"net": {"depth": 3, "drop": 0.1}, "bound": math.nan, "rate": 1.0}).load(
        from_bytes(content)
    )
    assert described.endswith("; settings.net.drop is new and was not compared")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "resnet18-cifar10"}, "recipe was 'digits' when it was saved and is 'resnet18-cifar10' now"),
        ({"globalBatchSize": 32}, "globalBatchSize was 64"),
        ({"seed": 1}, "seed was 0"),
        (
            {"data": {**DATA, "data": "100 samples, 22dd"}},
            "data was '100 samples, 00ff' when it was saved and is '100 samples, 22dd' now; give the training that data",
        ),
        ({"width": 5}, "does not fit recipe digits"),
    ],
)
def test_the_state_of_another_training_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        state(**changes).load(from_bytes(to_bytes(after_a_step(state()).content())))
    assert "remove its checkpoint folder" in str(caught.value)


class Pair(NamedTuple):
    first: int
    second: int


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(1), r"state\['optimizer'\]\['param_groups'\]\[0\]\['extra'\] is of type numpy\.ndarray"),
        ([1, {"deep": Pair(1, 2)}], r"\['extra'\]\[1\]\['deep'\] is of type .*\.Pair"),
        ({Pair(1, 2): 0}, r"\['extra'\] is of type builtins\.dict"),
        (lambda: 0, r"\['extra'\] is of type builtins\.function"),
    ],
)
def test_a_state_that_could_not_be_loaded_is_refused_by_the_name_and_type_of_the_value(value, message):
    odd = state()
    odd.check_loadable()
    odd.optimizer.param_groups[0]["extra"] = value
    with pytest.raises(ConfigError, match=message):
        odd.check_loadable()


def test_a_value_that_has_become_of_another_type_is_checked_again():
    odd = state()
    odd.check_loadable()
    odd.optimizer.param_groups[0]["lr"] = np.array(0.1)
    with pytest.raises(ConfigError, match=r"\['lr'\] is of type numpy\.ndarray"):
        odd.check_loadable()


def test_a_state_is_checked_again_only_if_it_has_changed(monkeypatch):
    checked = state()
    checked.check_loadable()
    monkeypatch.setattr(torch, "save", lambda *_: pytest.fail("it was saved again"))
    with torch.no_grad():
        next(checked.model.parameters()).add_(1)
    checked.check_loadable()


def convolution(memory_format: torch.memory_format) -> TrainingState:
    config = recipes.resolve(parse_config({"recipe": "digits"}))
    torch.manual_seed(0)
    model = torch.nn.Conv2d(8, 72, 3, dtype=torch.float64).to(memory_format=memory_format)
    return TrainingState(model=model, optimizer=sgd(model, config), config=config, data=DATA)


def a_step_of(trained: TrainingState) -> torch.Tensor:
    trained.optimizer.zero_grad()
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(2, 8, 5, 5, generator=generator, dtype=torch.float64)
    trained.model(images.contiguous(memory_format=torch.channels_last)).square().sum().backward()
    trained.optimizer.step()
    return trained.model.get_parameter("weight").detach().contiguous()


def test_momentum_follows_its_parameter_into_another_memory_format():
    saved = convolution(torch.contiguous_format)
    a_step_of(saved)
    payload = to_bytes(saved.content())
    expected = a_step_of(saved)

    loaded = convolution(torch.channels_last)
    loaded.load(from_bytes(payload))

    # Kernels for the two formats sum in different orders: 1e-15 apart in float64; momenta of wrong elements, 0.3.
    assert torch.allclose(a_step_of(loaded), expected, rtol=1e-10, atol=1e-10)
    for parameter, state_of_it in loaded.optimizer.state.items():
        assert state_of_it["momentum_buffer"].stride() == parameter.stride()


@pytest.mark.parametrize("prefix", ["", "module."])
def test_initial_weights_come_from_a_checkpoint_a_bare_state_dict_or_safetensors_and_nothing_else_does(prefix):
    trained = after_a_step(state())
    bare = {prefix + name: value for name, value in trained.model.state_dict().items()}
    safetensors = bytearray()
    write_tensors(bare, fake(write=safetensors.extend))
    for payload in (to_bytes(trained.content()), to_bytes(bare), safetensors):
        fresh = state(seed=7, globalBatchSize=32)
        fresh.load_weights(bytes(payload), source="a.pt")
        assert torch.equal(fresh.model.get_parameter("0.weight"), trained.model.get_parameter("0.weight"))
        assert (fresh.step, fresh.optimizer.state_dict()["state"]) == (0, {})


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "holds no weights"),
        (b"no zip", r"holds no weights .* expected a checkpoint of recipe digits"),
        (to_bytes([1]), "holds no weights"),
        (
            to_bytes({"model": {"0.weight": torch.ones(4, 2), "other": torch.ones(1)}}),
            r'does not fit the model of recipe digits: Missing key\(s\) in state_dict: "0.bias", .* Unexpected .* "other"',
        ),
        (to_bytes(torch.nn.Sequential(torch.nn.Linear(3, 4)).state_dict()), "size mismatch for 0.weight"),
    ],
)
def test_a_file_without_these_weights_is_refused(payload, text):
    with pytest.raises(ConfigError, match=rf"(?s)initialCheckpoint a\.pt: .*{text}"):
        state().load_weights(payload, source="a.pt")


@pytest.mark.parametrize(
    ("number", "final"),
    [(errno.ENOENT, True), (errno.EACCES, True), (errno.EISDIR, True), (errno.EIO, False), (errno.ESTALE, False)],
)
def test_initial_weights_that_storage_does_not_give_for_now_end_the_attempt_alone(monkeypatch, number, final):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "open_to_read", fails)
    monkeypatch.setattr(Gang, "all_gather", lambda _, value: [value])
    gang = Gang(rank=0, world_size=1, device=torch.device("cpu"), control=None)
    with pytest.raises(ConfigError if final else OSError, match=os.strerror(number)):
        worker._warm_start(state(initialCheckpoint="/shared/a.pt"), Run(gang, Reporter(enabled=False)))


def test_what_set_up_tries_leaves_no_trace_in_the_state():
    tried, untouched = state(), state()
    with worker._restored_afterwards(tried):
        tried.model(torch.rand(3, 2)).sum().backward()
    for found, expected in zip(tried.model.state_dict().values(), untouched.model.state_dict().values(), strict=True):
        assert torch.equal(found, expected)
    assert all(parameter.grad is None for parameter in tried.model.parameters())


def test_settings_that_may_change_are_named_when_they_have():
    saved = state().content()
    description = state(learningRate=0.02, emaDecay=0.5).load(saved)
    assert "; learningRate was " in description
    assert " and is 0.02" in description
    assert "; emaDecay was 0.0 and is 0.5" in description
    assert "seed" not in description


def test_a_checkpoint_of_a_script_is_none_of_a_recipe():
    with pytest.raises(ConfigError, match="checkpoint at step 3: it was saved by a script with a session"):
        state().load({"step": 3, "world_size": 1, "model": {}})
