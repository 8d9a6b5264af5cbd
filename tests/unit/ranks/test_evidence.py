"""What is shown of a GPU: from torch, and from nvidia-smi where it answers."""

import subprocess

import pytest
import torch

from ddpjob_ranks.watch import evidence
from support.fakes import fake

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def gpu(monkeypatch, tmp_path):
    """One GPU, and a folder for programs."""
    found = fake(name="NVIDIA H200", total_memory=140 * 2**30, uuid="1-2")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    evidence.nvidia_smi.cache_clear()
    yield
    evidence.nvidia_smi.cache_clear()


def install(tmp_path, script: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_driver_and_power_limit_are_those_of_this_gpu(tmp_path):
    install(tmp_path, '[ "$1" = --id=GPU-1-2 ] && echo "580.65.06, 700.00 W"')
    assert evidence.device_name(GPU) == "NVIDIA H200, 140 GiB, driver 580.65.06, 700.00 W"


@pytest.mark.parametrize("script", ["exit 6", "echo No devices were found", "exit 0"])
def test_a_gpu_that_nvidia_smi_does_not_know_has_torchs_facts(tmp_path, script):
    install(tmp_path, script)
    assert evidence.device_name(GPU) == "NVIDIA H200, 140 GiB"


def test_an_nvidia_smi_that_is_missing_or_does_not_answer_is_left_out(monkeypatch):
    assert evidence.device_name(GPU) == "NVIDIA H200, 140 GiB"
    evidence.nvidia_smi.cache_clear()

    def hang(command, *, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert evidence.device_name(GPU) == "NVIDIA H200, 140 GiB"


def test_a_cpu_is_called_so():
    assert evidence.device_name(torch.device("cpu")) == "cpu"
