"""The process group of a rank: its device, threads and backend, and which errors come from other ranks.

What CUDA shows is given, and what creates process groups, so that all of it runs without a GPU.
"""

import io
import os
import pickle
import subprocess
import sys
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d

from ddpjob_ranks import device_memory, distributed, generation
from ddpjob_ranks.device_memory import is_out_of_memory
from ddpjob_ranks.distributed import Gang, is_peer_loss
from ddpjob_ranks.errors import ConfigError, ForeignMessageError
from ddpjob_ranks.launch import preflight
from ddpjob_ranks.limits import Limits
from support.fakes import fake
from support.workers import worker

PROGRAM = """
from types import SimpleNamespace

import torch
import torch.distributed as dist
from ddpjob_ranks import distributed
from ddpjob_ranks.launch.identity import resolve
from ddpjob_ranks.limits import Limits

init = lambda *args, **given: dist.init_process_group(*args, **{**given, "device_id": None})
groups = SimpleNamespace(init_process_group=init, new_group=dist.new_group)
limits = Limits(first_step_seconds=9, step_seconds=9)
with distributed.join(resolve({}), limits, torch.device("cuda", 0), dist.HashStore(), groups):
    pass
"""


@pytest.fixture(autouse=True)
def no_gpu_variables(monkeypatch):
    for name in ("DDPJOB_GPUS_PER_NODE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def device_of(*, local_rank, num_gpus, num_ranks=4):
    """The device of a rank of a node that shows it so many GPUs."""
    cuda = fake(is_available=lambda: num_gpus > 0, device_count=lambda: num_gpus)
    rank = worker(local_rank, num_ranks, local_rank=local_rank, local_world_size=num_ranks)
    return str(distributed.device_of(rank, cuda))


@pytest.mark.parametrize(
    ("num_gpus", "devices"),
    [(4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]), (1, 4 * ["cuda:0"]), (0, 4 * ["cpu"])],
    ids=["each rank sees all GPUs", "each rank sees its own GPU", "no GPUs"],
)
def test_each_rank_of_a_node_has_its_device(num_gpus, devices):
    assert [device_of(local_rank=rank, num_gpus=num_gpus) for rank in range(4)] == devices


def test_more_ranks_than_gpus_are_refused():
    with pytest.raises(ConfigError, match="local rank 3 has no GPU, because CUDA shows 2 on this node"):
        device_of(local_rank=3, num_gpus=2)


@pytest.mark.parametrize("num_gpus", [0, 1, 3])
def test_a_node_that_shows_fewer_gpus_than_the_pod_was_given_is_refused(monkeypatch, num_gpus):
    monkeypatch.setenv("DDPJOB_GPUS_PER_NODE", "4")
    monkeypatch.setenv("DDPJOB_NAME", "job")
    monkeypatch.setenv("NODE_NAME", "node-7")
    with pytest.raises(RuntimeError, match=rf"on node node-7 was given 4 GPUs .* sees {num_gpus}: .* nvidia-smi"):
        device_of(local_rank=0, num_gpus=num_gpus)


def test_slices_of_a_gpu_may_be_shown_as_one(monkeypatch):
    monkeypatch.setenv("DDPJOB_GPUS_PER_NODE", "2")
    assert device_of(local_rank=0, num_gpus=1, num_ranks=1) == "cuda:0"


def test_a_choice_of_gpus_is_respected(monkeypatch):
    monkeypatch.setenv("DDPJOB_GPUS_PER_NODE", "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device_of(local_rank=0, num_gpus=0) == "cpu"


def test_a_rank_waits_for_the_memory_of_its_gpu_before_it_meets_the_others(monkeypatch):
    """They compare their GPUs then, which takes some of that memory."""
    done: list[str] = []
    device, store = torch.device("cuda", 0), HashStore()
    monkeypatch.setattr(distributed, "device_of", lambda _: device)
    monkeypatch.setattr(device_memory, "use", lambda used, _: done.append(f"use {used}"))
    monkeypatch.setattr(distributed, "meet", lambda *_: done.append("meet") or store)
    limits = Limits(first_step_seconds=9, step_seconds=9)
    assert distributed.rendezvous(worker(), limits, {}) == (device, store)
    assert done == ["use cuda:0", "meet"]


def test_torch_has_as_many_threads_and_compilers_also_if_the_compiler_was_imported_before(monkeypatch):
    inductor = fake(compile_threads=64)
    monkeypatch.setitem(sys.modules, "torch._inductor.config", inductor)
    before = torch.get_num_threads()
    for variable in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    distributed.set_num_threads(before + 1)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == str(before + 1)
    assert inductor.compile_threads == before + 1


def test_nccl_is_the_backend_that_does_not_block_the_computation():
    """With the newer one, torch's default, backward would wait for each bucket of gradients.

    Which one it is, torch says in its complaint that there is no GPU; so those of the machine are hidden.
    """
    environ = {name: value for name, value in os.environ.items() if name != "TORCH_DIST_USE_NCCL2"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env={**environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=120, check=False
    )
    assert "ValueError: ProcessGroupNCCL is only supported with GPUs" in done.stderr


def test_torchs_own_watchdog_neither_sleeps_nor_ends_ranks_and_the_group_for_control_needs_no_gpu(monkeypatch, capsys):
    """Its signal to dump would stay in the store of ranks that start again in place, and end them minutes later."""
    set_at_start = {}

    def init_process_group(*_: object, **__: object) -> None:
        set_at_start.update({name: os.environ[name] for name in distributed.NCCL_SETTINGS})

    control = dist.ProcessGroup(0, 1)
    control.bound_device_id = torch.device("cuda", 0)
    default = fake(WORLD=fake(_get_backend=lambda _: fake()))
    groups = fake(init_process_group=init_process_group, new_group=lambda **_: control, group=default)
    for name in distributed.NCCL_SETTINGS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    limits = Limits(first_step_seconds=9, step_seconds=9)
    distributed.join(worker(), limits, torch.device("cuda", 0), HashStore(), groups).__enter__()
    assert control.bound_device_id is None
    for name in ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_NCCL_ENABLE_MONITORING"):
        assert set_at_start[name] == "0"
    assert capsys.readouterr().out.startswith("NCCL by ")


@pytest.mark.parametrize("name", distributed.NCCL_SETTINGS)
def test_torch_knows_what_it_is_told(name):
    """A variable that a release has renamed would be ignored without a word."""
    if name == "TORCH_DIST_USE_NCCL2" and not hasattr(distributed_c10d, "ProcessGroupNCCL2"):
        return  # before 2.15 there is one backend
    library = Path(torch.__file__).with_name("lib") / "libtorch_cuda.so"
    for file in (library, Path(distributed_c10d.__file__)):
        with file.open("rb") as source, mmap(source.fileno(), 0, access=ACCESS_READ) as text:
            if text.find(name.encode()) >= 0:
                return
    pytest.fail(f"torch {torch.__version__} does not know {name}")


@pytest.mark.parametrize(
    ("error", "is_echo"),
    [
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error: Connection reset"), True),
        (RuntimeError("Connection closed by peer [10.0.0.7]:4242"), True),
        (dist.DistBackendError("NCCL communicator was aborted"), True),
        (dist.DistBackendError("NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"), False),
        (dist.DistBackendError("NCCL error: unhandled cuda error\nCuda failure 700 'an illegal memory access'"), False),
        (RuntimeError("ProcessGroupNCCL requires CUDA tensors"), False),
        (dist.DistBackendError("NCCL error: ncclSystemError\nError while creating shared memory segment"), False),
        (dist.DistBackendError("NCCL error: ncclInvalidUsage\nDuplicate GPU detected"), False),
        (dist.DistNetworkError("The client socket has timed out after 600000ms while trying to connect"), True),
        (dist.DistNetworkError("The server socket has failed to listen: EADDRINUSE"), False),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 5"), False),
        (ValueError("Connection closed by peer"), False),
        (RuntimeError("Caught OSError in DataLoader worker process 0.\nOSError: Connection reset by peer"), False),
    ],
)
def test_only_the_consequence_of_another_ranks_end_is_a_peer_loss(error, is_echo):
    assert is_peer_loss(error) is is_echo


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    ],
)
def test_memory_that_ran_out_is_known_by_its_message(message):
    assert is_out_of_memory(RuntimeError(message))
    assert not is_peer_loss(RuntimeError(message))


@pytest.mark.parametrize("mine", [None, fake()], ids=["its pod does not start again in place", "rank 0"])
def test_a_store_that_is_lost_with_no_other_to_come_ends_the_rank(monkeypatch, mine):
    stores = iter([dist.DistNetworkError("connection reset by peer"), HashStore()])

    def open_store(_):
        if isinstance(store := next(stores), Exception):
            raise store
        return store

    monkeypatch.setenv("DDPJOB_REPLACEMENT_SECONDS", "300")
    monkeypatch.setattr(generation, "current", lambda _: mine)
    monkeypatch.setattr(distributed, "open_store", open_store)
    monkeypatch.setattr(preflight, "check", lambda *_: None)
    with pytest.raises(dist.DistNetworkError, match="connection reset by peer"):
        distributed.meet(worker(1 if mine is None else 0, 2), {}, torch.device("cpu"))


@pytest.mark.parametrize(
    ("kind", "changed", "expected"),
    [
        ("ProcessGroupNCCL", {}, "NCCL by ProcessGroupNCCL, set by 7 variables"),
        ("ProcessGroupNCCL", {"TORCH_NCCL_ENABLE_TIMING": "0"}, "not as ddpjob sets them: TORCH_NCCL_ENABLE_TIMING=0"),
        ("ProcessGroupNCCL2", {}, "TORCH_DIST_USE_NCCL2=0 has no effect in torch"),
        ("ProcessGroupNCCL2", {"TORCH_DIST_USE_NCCL2": "1"}, "not as ddpjob sets them: TORCH_DIST_USE_NCCL2=1"),
    ],
)
def test_what_nccl_was_told_is_compared_with_what_runs(kind, changed, expected):
    found = distributed.nccl_in_effect(type(kind, (), {})(), distributed.NCCL_SETTINGS | changed)
    assert expected in found
    assert ("has no effect" in found) == (kind == "ProcessGroupNCCL2" and not changed)


class Program:
    """Runs when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.fixture
def gathered(monkeypatch):
    """A function that gives what rank 0 of two gathers, where rank 1 has sent these bytes."""
    gang = Gang(rank=0, world_size=2, device=torch.device("cpu"), control=None)

    def gather(value, sent):
        def all_gather(outputs, mine, **_):
            theirs = (
                torch.tensor([len(sent)]) if mine.dtype == torch.int64 else torch.frombuffer(sent, dtype=torch.uint8)
            )
            for output, message in zip(outputs, (mine, theirs), strict=True):
                output[: len(message)] = message

        monkeypatch.setattr(dist, "all_gather", all_gather)
        monkeypatch.setattr(dist, "get_world_size", lambda _: gang.world_size)
        return gang.all_gather(value)

    return gather


def message(value: object) -> bytearray:
    file = io.BytesIO()
    torch.save(value, file)
    return bytearray(file.getvalue())


def test_what_another_rank_sends_is_data_and_never_runs(gathered, tmp_path):
    program = Program(tmp_path / "ran")
    pickled = bytearray(pickle.dumps(program, protocol=2))
    for sent in (message(program), message([{"a": program}]), pickled, bytearray(b"none of this"), bytearray(b"x")):
        for value in ("mine", "a longer message than the other one" * 100):
            with pytest.raises(ForeignMessageError, match="rank 1 has sent a message that is not one of this program"):
                gathered(value, sent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value", [None, 7, 2**70, -1.5, True, "text", b"bytes", [("a", 1)], ({3, 1}, None, 5), {"version": {1: ["x"]}}]
)
def test_ranks_gather_values_of_any_kind_and_length(gathered, value):
    assert gathered(value, message("the other" * 1000)) == [value, "the other" * 1000]
    assert gathered("mine" * 1000, message(value)) == ["mine" * 1000, value]
