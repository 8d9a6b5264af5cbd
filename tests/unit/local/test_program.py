"""The program and the environment of a rank of a local run."""

from pathlib import Path
from typing import Any

import pytest

from ddpjob_cli.local.program import Machine, Program, expanded, program_of
from ddpjob_cli.local.volumes import Mount
from ddpjob_operator.api.names import LABEL_RANK


def pod(
    *command: str, rank: int = 0, nodes: int = 2, processes: int = 1, args: tuple[str, ...] = (), **env: str
) -> dict[str, Any]:
    own = {
        "MASTER_ADDR": "job-master.default.svc",
        "MASTER_PORT": "29500",
        "NNODES": str(nodes),
        "WORLD_SIZE": str(nodes * processes),
        "RANK": str(rank * processes),
    }
    container = {
        "name": "trainer",
        "command": list(command),
        "args": list(args),
        "env": [{"name": name, "value": value} for name, value in {**own, **env}.items()],
    }
    return {"metadata": {"name": "p", "labels": {LABEL_RANK: str(rank)}}, "spec": {"containers": [container]}}


def program(body: dict[str, Any], *, gpus: tuple[str, ...] = (), **environ: str) -> Program:
    python, environ = Path("/venv/bin/python"), {"PATH": "/usr/bin", **environ}
    machine = Machine(python=python, environ=environ, num_cpus=8, master_port=4711, gpus=gpus)
    mounts = (Mount(path="/script", folder=Path("/run/script")),)
    return program_of(body, mounts, machine, Path("/run/termination"), Path("/here"))


@pytest.mark.parametrize("name", ["python", "python3"])
def test_python_is_the_interpreter_that_runs_us(name: str) -> None:
    assert program(pod(name, "x.py", args=("--fast",))).command == ("/venv/bin/python", "x.py", "--fast")


def test_torchrun_is_found_next_to_the_interpreter() -> None:
    found = program(pod("torchrun", "x.py"))
    assert found.command[0] == "torchrun"
    assert found.environ["PATH"] == "/venv/bin:/usr/bin"


def test_ranks_meet_on_loopback_at_the_reserved_port() -> None:
    environ = program(pod("x")).environ
    names = ("MASTER_ADDR", "MASTER_PORT", "PET_MASTER_ADDR", "PET_MASTER_PORT", "GLOO_SOCKET_IFNAME")
    assert [environ[name] for name in names] == ["127.0.0.1", "4711", "127.0.0.1", "4711", "lo"]


def test_paths_in_commands_and_variables_are_localized() -> None:
    found = program(pod("/script/run", "/script/train.py", "--script=/script", WHERE="/script/here"))
    assert found.command == ("/run/script/run", "/run/script/train.py", "--script=/script")
    assert found.environ["WHERE"] == "/run/script/here"


@pytest.mark.parametrize(
    ("working_dir", "expected"),
    [(None, "/here"), ("/workspace", "/here"), ("/script", "/run/script"), ("/script/runs", "/run/script/runs")],
)
def test_a_working_directory_below_a_mount_is_localized_and_any_other_is_the_current_directory(
    working_dir: str | None, expected: str
) -> None:
    body = pod("python", "/script/train.py")
    if working_dir:
        body["spec"]["containers"][0]["workingDir"] = working_dir
    assert program(body).folder == Path(expected)


@pytest.mark.parametrize("name", ["LOCAL_RANK", "SLURM_PROCID", "PET_NPROC_PER_NODE", "TORCHELASTIC_RUN_ID", "RANK"])
def test_a_launcher_around_us_does_not_mislead_the_ranks(name: str) -> None:
    launcher: dict[str, Any] = {name: "7"}
    assert program(pod("x", processes=2), **launcher).environ.get(name) != "7"


def test_the_users_own_variables_are_inherited_and_the_jobs_win() -> None:
    environ = program(pod("x", BOTH="job"), MINE="shell", BOTH="shell").environ
    assert (environ["MINE"], environ["BOTH"]) == ("shell", "job")


@pytest.mark.parametrize(
    ("rank", "gpus", "expected"),
    [(0, ("0", "1", "2", "3"), "0,1"), (1, ("0", "1", "2", "3"), "2,3"), (0, (), ""), (1, ("5", "GPU-a"), "GPU-a")],
)
def test_gpus_are_shared_out_by_node_rank(rank: int, gpus: tuple[str, ...], expected: str) -> None:
    assert program(pod("x", rank=rank), gpus=gpus).environ["CUDA_VISIBLE_DEVICES"] == expected


def test_threads_are_shared_out_too_unless_the_job_says_otherwise() -> None:
    assert program(pod("x", nodes=2, processes=2)).environ["OMP_NUM_THREADS"] == "2"
    assert program(pod("x", nodes=16)).environ["OMP_NUM_THREADS"] == "1"
    assert program(pod("x", OMP_NUM_THREADS="5")).environ["OMP_NUM_THREADS"] == "5"


def test_the_termination_message_has_a_file() -> None:
    assert program(pod("x")).environ["DDPJOB_TERMINATION_LOG"] == "/run/termination"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)/x", "1/x"), ("$(B)", "$(B)"), ("$$(A)", "$(A)"), ("$$", "$"), ("$A", "$A"), ("a$(A)$(A)", "a11")],
)
def test_references_expand_as_in_a_pod(text: str, expected: str) -> None:
    assert expanded(text, {"A": "1"}) == expected


def test_a_reference_sees_the_variables_before_it() -> None:
    environ = program(pod("run", "$(SECOND)", FIRST="a", SECOND="$(FIRST)b"))
    assert environ.command == ("run", "ab")


def test_paths_below_this_machines_tmp_are_meant_and_tmpdir_and_caches_are_the_pods_own() -> None:
    machine = Machine(python=Path("/venv/bin/python"), environ={}, num_cpus=8, master_port=4711, gpus=())
    mounts = (Mount(path="/tmp", folder=Path("/tmp/own")),)
    own: dict[str, Any] = {
        "TMPDIR": "/tmp",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor",
        "DDPJOB_EVENTS_DIR": "/tmp/events",
    }
    body = pod("python", "/tmp/work/train.py", **own)
    found = program_of(body, mounts, machine, Path("/run/termination"), Path("/here"))
    assert [found.command[1], *(found.environ[name] for name in own)] == [
        "/tmp/work/train.py",
        "/tmp/own",
        "/tmp/own/torchinductor",
        "/tmp/events",
    ]
