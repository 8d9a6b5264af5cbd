"""Metrics of a GPU are read once the next step is in its queue."""

import pytest
import torch

from ddpjob_session.host_values import HostValues
from ddpjob_session.reported import Reported
from support.devices import on_each_device


@on_each_device
def test_numbers_and_tensors_are_read(device):
    values = HostValues(3, {"loss": torch.full((), 2.5, device=device, requires_grad=True), "epoch": 1}, device)
    assert (values.read(), values.are_here) == ({"loss": 2.5, "epoch": 1.0}, device.type == "cpu")


@pytest.mark.parametrize(("are_here", "shown_in_its_step"), [(True, [(4, {"loss": 2.0})]), (False, [])])
def test_what_a_script_reports_is_shown_at_once_or_when_the_next_step_is_done(monkeypatch, are_here, shown_in_its_step):
    monkeypatch.setattr(HostValues, "are_here", are_here)
    shown: list[tuple[int, dict[str, float]]] = []
    reported = Reported(lambda values, step: shown.append((step, dict(values))), torch.device("cpu"))
    loss = torch.tensor(2.0)
    reported.add({"loss": loss}, step=4, is_last=False)
    loss += 1  # the tensor stays the script's
    reported.show(before=4)
    assert shown == shown_in_its_step
    reported.show(before=5)
    assert shown == [(4, {"loss": 2.0})]
