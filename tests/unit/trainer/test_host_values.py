"""Metrics of a GPU are read once the next step is in its queue."""

from types import SimpleNamespace

import pytest
import torch

from ddpjob_session import session
from ddpjob_session.host_values import HostValues
from support.devices import on_each_device


@on_each_device
def test_numbers_and_tensors_are_read(device):
    values = HostValues(3, {"loss": torch.full((), 2.5, device=device, requires_grad=True), "epoch": 1}, device)
    assert (values.read(), values.are_here) == ({"loss": 2.5, "epoch": 1.0}, device.type == "cpu")


@pytest.mark.parametrize(("are_here", "shown_in_its_step"), [(True, [(4, {"loss": 2.0})]), (False, [])])
def test_what_a_script_reports_is_shown_at_once_or_when_the_next_step_is_done(monkeypatch, are_here, shown_in_its_step):
    monkeypatch.setattr(HostValues, "are_here", are_here)
    shown: list[tuple[int, dict[str, float]]] = []
    report = SimpleNamespace(keep_alive=lambda: None, log_metrics=lambda values, *, step: shown.append((step, values)))
    of_session = session.Session()
    of_session.rank, of_session.device, of_session._total = 0, torch.device("cpu"), 9
    of_session._run = SimpleNamespace(
        state=SimpleNamespace(step=3), report=report, timeline=SimpleNamespace(moved=lambda: None)
    )
    of_session.report(loss=torch.tensor(2.0))
    of_session._show_reported(before=4)
    assert shown == shown_in_its_step
    of_session._show_reported(before=5)
    assert shown == [(4, {"loss": 2.0})]
