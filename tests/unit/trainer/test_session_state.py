"""The state of a script's training: its parts, and the generators of random numbers."""

import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ddpjob_ranks.errors import ConfigError
from ddpjob_session import generators
from ddpjob_session.session import Session
from ddpjob_session.state import ScriptState, from_bytes
from support.devices import on_each_device
from support.saved_states import Sampler, to_bytes

CPU = torch.device("cpu")


def of(*, settings: dict[str, str] | None = None, **parts: Any) -> ScriptState:
    return ScriptState(parts, program="script train.py", world_size=2, settings=settings or {})


def test_all_parts_come_back():
    saved = of(model=(trained := nn.Linear(2, 1)), sampler=Sampler(1, 7))
    saved.step, saved.random = 5, [generators.state(generators.capture(CPU))]
    loaded = of(model=(model := nn.Linear(2, 1)), sampler=(sampler := Sampler()))
    assert loaded.load(from_bytes(to_bytes(saved.content()))) == "saved by 2 ranks"
    assert (loaded.step, sampler.drawn) == (5, [1, 7])
    assert torch.equal(model.weight, trained.weight)
    assert loaded.random is not None


def test_settings_that_have_changed_since_the_checkpoint_are_named():
    """Without their values, which may be secret, and which the checkpoint does not hold."""
    before = {"lr": "0.01", "epochs": "3", "old": "1", "key": "a-secret", "call": "<function f at 0x1>"}
    content = to_bytes(of(settings=before).content())
    assert b"a-secret" not in content
    now = {"lr": "0.02", "epochs": "3", "new": "1", "key": "another-secret", "call": "<function f at 0x2>"}
    described = of(settings=now).load(from_bytes(content))
    assert described.startswith(
        "saved by 2 ranks; settings that have changed since: lr, key; the tracked parts continue"
    )
    assert of(settings={"lr": "0.01"}).load(from_bytes(content)) == "saved by 2 ranks"
    assert of(settings={"lr": "0.01"}).load(of().content()) == "saved by 2 ranks"


def test_a_part_that_has_been_loaded_is_not_kept_twice():
    content = from_bytes(to_bytes(of(model=nn.Linear(2, 1)).content()))
    of(model=nn.Linear(2, 1)).load(content)
    assert "model" not in content


def test_a_checkpoint_is_read_from_memory_without_a_copy_of_it():
    payload = bytearray(to_bytes(of(model=nn.Linear(1000, 1000)).content()))
    tracemalloc.start()  # counts what Python allocates, which tensors are not
    try:
        assert from_bytes(memoryview(payload))["step"] == 0
        assert tracemalloc.get_traced_memory()[1] < len(payload) / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": nn.Linear(2, 1), "average": nn.Linear(2, 1)}, "does not fit script train.py: 'average'"),
        ({"model": nn.Linear(3, 1)}, "(?s)does not fit script train.py: .*size mismatch"),
    ],
)
def test_a_checkpoint_of_other_parts_is_refused(parts, message):
    with pytest.raises(ConfigError, match=message):
        of(**parts).load(of(model=nn.Linear(2, 1)).content())


@pytest.mark.parametrize(("method", "arguments"), [("report", {"loss": 1.0}), ("save", {})])
def test_what_needs_the_loop_says_so_before_it(method, arguments):
    with pytest.raises(
        RuntimeError, match=f"Session.{method}: the loop over Session.steps has not begun; call it within"
    ):
        getattr(Session(), method)(**arguments)


def numbers(device: torch.device) -> list[float]:
    drawn = [float(torch.rand(1, device=device)), float(torch.rand(1))]
    return [random.random(), random.gauss(0, 1), float(np.random.rand()), *drawn]  # noqa: S311


@on_each_device
def test_generators_continue_where_they_were(device):
    random.gauss(0, 1)  # keeps a second number for the next call
    states = [generators.state(generators.capture(device)), generators.state(generators.capture(device))]
    expected = numbers(device)
    loaded = from_bytes(to_bytes({"random": states}))["random"]
    for state in loaded:  # the second is a view into the storage of both
        generators.restore(state, device)
        assert numbers(device) == expected


@on_each_device
def test_an_optimizer_continues_on_the_device_of_its_parameters(device):
    def created() -> tuple[nn.Module, torch.optim.Optimizer, ScriptState]:
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        return model, optimizer, of(model=model, optimizer=optimizer)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            parameter.grad = parameter.detach() + 1
        optimizer.step()

    whole, whole_optimizer, state = created()
    resumed, resumed_optimizer, other = created()
    train(whole, whole_optimizer)
    other.load(from_bytes(to_bytes(state.content())))
    train(whole, whole_optimizer)
    train(resumed, resumed_optimizer)
    for expected, found in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_what_a_set_or_a_counter_holds_is_checked_at_each_save():
    pairs: tuple[tuple[Any, Any], ...] = (
        (set(), {np.int64(3)}),
        (Counter(), Counter({np.int64(3): 1})),
        ({1: 2}, {np.int64(1): 2}),
    )
    for value, later in pairs:
        sampler = Sampler(value)
        state = of(sampler=sampler)
        state.check_loadable()
        sampler.drawn = [later]
        with pytest.raises(ConfigError, match=r"\['drawn'\]"):
            state.check_loadable()


def test_a_checkpoint_and_the_last_step_show_the_values_of_their_own_step():
    program = """
import torch
from ddpjob_session import reported, session
reported.REPORT_SECONDS = 1e9  # else once a second
loss = torch.zeros(())
with session.Session() as run:
    for step in run.steps(total=6):
        loss += 1  # the tensor stays the script's
        run.report(loss=loss)
        run.report(number=2**24 + 1)
        if step == 2:
            run.save()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("step ")] == [
        "step 1/6 loss 1",
        "step 1/6 number 16777217",
        "step 3/6 loss 3 number 16777217",
        "step 6/6 loss 6",
        "step 6/6 number 16777217",
    ]
