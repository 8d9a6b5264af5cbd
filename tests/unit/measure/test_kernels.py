from typing import Any, Self

import pytest
import torch

from ddpjob_measure import kernels
from support.fakes import fake


def event(key: str, microseconds: float, *, device: str = "CUDA", is_range: bool = False) -> Any:
    return fake(
        key=key,
        count=1,
        self_device_time_total=microseconds,
        self_cpu_time_total=0.0,
        device_type=fake(name=device),
        is_user_annotation=is_range,
    )


class Profile:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def key_averages(self) -> list[Any]:
        return [
            event("Optimizer.step#SGD.step", 100, is_range=True),  # which the kernel of the update is a part of
            event("update", 90),
            event("convolution", 210),
            event("aten::conv2d", 300, device="CPU"),
        ]


def test_kernels_of_a_gpu_are_listed_without_the_ranges_that_they_are_in(monkeypatch):
    monkeypatch.setattr(kernels, "profile", lambda **_: Profile())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    found = kernels.top(lambda: None, torch.device("cuda", 0))
    assert {row["kernel"]: row["share"] for row in found} == {
        "convolution": pytest.approx(0.7),
        "update": pytest.approx(0.3),
    }
