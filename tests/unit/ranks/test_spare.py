"""A spare pod: its launcher waits with everything imported until it is assigned a rank. Without torch, which only takes time."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch import identity
from ddpjob_ranks.launch.spare import wait_for_assignment
from support.fakes import fake
from testbed.waiting import wait_for

SPARE = """
import os, sys
from ddpjob_ranks.launch import command, supervisor
supervisor.MODULES = ("imported",)
sys.exit(command.start(["rank.py"], os.environ))
"""
RANK = """
import json, os, sys
own = {name: value for name, value in os.environ.items() if "RANK" in name or "SPARE" in name}
sys.stdout.write(f"{json.dumps(own)} {'imported' in sys.modules}\\n")  # in one piece: two ranks write at once
"""
UNASSIGNED = {contract.RANK: "unassigned", contract.NODE_RANK: "unassigned"}
JOB = {contract.WORLD_SIZE: "2", contract.NPROC_PER_NODE: "2", contract.DDPJOB_ATTEMPT: "1"}
DEADLINE_SECONDS = 60.0


@contextmanager
def spare(folder, imported=""):
    """A launcher that waits in this folder, whose template has imported such a module."""
    for name, text in {"imported.py": imported, "rank.py": RANK, "assignment": ""}.items():
        (folder / name).write_text(text)
    files = {
        contract.DDPJOB_SPARE_ASSIGNMENT: str(folder / "assignment"),
        contract.DDPJOB_SPARE_READY: str(folder / "ready"),
        contract.DDPJOB_TERMINATION_LOG: str(folder / "message"),
    }
    (folder / "message").touch()
    environ = {**os.environ, **JOB, **UNASSIGNED, **files, "PYTHONPATH": ":".join([str(folder), *sys.path])}
    command = [sys.executable, "-c", SPARE]
    with subprocess.Popen(command, env=environ, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def assign(folder, variables):
    """As the kubelet does: a reader sees all of it or nothing."""
    (folder / "new").write_text(json.dumps(variables))
    (folder / "new").rename(folder / "assignment")


def test_its_ranks_have_the_assigned_variables_and_what_it_has_imported(tmp_path):
    with spare(tmp_path) as process:
        wait_for("the file ready", (tmp_path / "ready").exists, seconds=DEADLINE_SECONDS)
        assert process.poll() is None
        assign(tmp_path, {contract.RANK: "0", contract.NODE_RANK: "0", contract.DDPJOB_IN_PLACE_RESTARTS: "3"})
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    ranks = [line.rpartition(" ") for line in output.splitlines() if line.startswith("{")]
    variables = [json.loads(text) for text, _, _ in ranks]
    assert (process.returncode, {imported for _, _, imported in ranks}) == (0, {"True"}), output
    assert sorted(v[contract.RANK] for v in variables) == ["0", "1"]
    assert {v[contract.NODE_RANK] for v in variables} == {"0"}
    assert not any(contract.DDPJOB_SPARE_ASSIGNMENT in v for v in variables)


def test_it_is_not_ready_and_ends_at_once_while_it_imports(tmp_path):
    with spare(tmp_path, "from pathlib import Path\nimport time\nPath('begun').touch()\ntime.sleep(600)") as process:
        wait_for("the file begun", (tmp_path / "begun").exists, seconds=DEADLINE_SECONDS)
        assert not (tmp_path / "ready").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=DEADLINE_SECONDS) == contract.EXIT_TERMINATED


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_while_it_waits(tmp_path, sent):
    with spare(tmp_path) as process:
        wait_for("the file ready", (tmp_path / "ready").exists, seconds=DEADLINE_SECONDS)
        process.send_signal(sent)
        assert process.wait(timeout=DEADLINE_SECONDS) == contract.EXIT_TERMINATED
        assert "{" not in process.stdout.read()


def test_it_ends_with_what_its_ranks_would_be_forked_from(tmp_path):
    """As where memory runs out. A pod that is assigned a rank then would be of no use."""
    with spare(tmp_path, "import os\nopen('pid', 'w').write(str(os.getpid()))") as process:
        wait_for("the file ready", (tmp_path / "ready").exists, seconds=DEADLINE_SECONDS)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        assert process.wait(timeout=DEADLINE_SECONDS) == contract.EXIT_PROGRAM_ERROR
    assert "the process that ranks are forked from" in (tmp_path / "message").read_text()


@pytest.mark.parametrize("more", [{}, {contract.LOCAL_RANK: "0"}, {contract.NPROC_PER_NODE: "1"}])
def test_a_launcher_that_knows_of_no_spare_pods_joins_no_gang(more):
    """As that of an older image: it would be a second rank 0."""
    address = {contract.MASTER_ADDR: "127.0.0.1"}
    with pytest.raises(ConfigError, match="RANK is 'unassigned'"):
        identity.resolve(JOB | UNASSIGNED | address | more)


def test_a_look_while_the_kubelet_exchanges_the_file_finds_none_and_is_repeated(tmp_path, monkeypatch):
    """A reader may follow a link to a directory that the kubelet removes in this moment."""
    (tmp_path / "assignment").write_text(json.dumps({contract.NODE_RANK: "1"}))
    looks = iter([FileNotFoundError(), ""])

    def read_text(path, real=Path.read_text):
        if isinstance(found := next(looks, None), OSError):
            raise found
        return real(path) if found is None else found

    monkeypatch.setattr(Path, "read_text", read_text)
    files = {
        contract.DDPJOB_SPARE_ASSIGNMENT: str(tmp_path / "assignment"),
        contract.DDPJOB_SPARE_READY: str(tmp_path / "ready"),
    }
    template = fake(wait_until_ready=lambda: None, has_ended=False)
    assert wait_for_assignment(files, template) == {contract.NODE_RANK: "1"}


@pytest.mark.parametrize("text", ["{", "null", "[]", "{}", '{"NODE_RANK": 1}', '{"RANK": "1"}'])
def test_an_assignment_that_names_no_rank_is_an_error_that_quotes_it(tmp_path, text):
    (tmp_path / "assignment").write_text(text)
    files = {name: str(tmp_path / name.lower()) for name in (contract.DDPJOB_SPARE_READY,)}
    environ = {contract.DDPJOB_SPARE_ASSIGNMENT: str(tmp_path / "assignment"), **files}
    template = fake(wait_until_ready=lambda: None, has_ended=False)
    with pytest.raises(ConfigError, match="should hold the variables of a rank as JSON") as error:
        wait_for_assignment(environ, template)
    assert repr(text) in str(error.value)
