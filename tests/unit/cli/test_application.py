"""The command line as a whole: help, options, errors, and what a command imports."""

import os
import pkgutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ddpjob_cli import commands
from ddpjob_cli.__main__ import main
from ddpjob_cli.application import COMMANDS, unwrapped

EXAMPLES = sorted((Path(__file__).parents[3] / "manifests/examples").glob("*.yaml"))


def test_a_suspended_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"command": ["x"], "suspend": True}
    job = {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": {"name": "job"}, "spec": spec}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    assert main(["run", "--local", str(file)]) == 2
    assert "spec.suspend is true, so no pod would run" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["run"], ["fly"]])
def test_wrong_use_is_exit_code_2(arguments: list[str]) -> None:
    assert main(arguments) == 2


def test_a_cluster_that_cannot_be_found_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--kubeconfig", str(tmp_path / "absent")]) == 3
    error = capsys.readouterr().err
    assert "there is no kubeconfig at" in error
    assert "without a cluster, jobs run on this machine: ddpjob run --local FILE" in error


def test_the_paragraphs_of_a_help_text_break_where_the_terminal_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["wait", "--help"]) == 0
    assert "For `finished` it is 0 if the job succeeded" in capsys.readouterr().out, "the docstring breaks after `is`"
    assert unwrapped("One\nline.\n\n    an\n    example") == "One line.\n\n    an\n    example"


def test_each_module_of_a_command_is_in_the_table() -> None:
    modules = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    assert modules <= {name.replace("-", "_") for name in COMMANDS}


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["validate", *map(str, EXAMPLES)], ["init", "-"]])
def test_a_reader_that_ends_early_is_no_error(arguments: list[str], unbuffered: str) -> None:
    """The signal of a broken pipe is ignored: it would end a command whose connection to the API server breaks."""
    program = "import sys, signal; from ddpjob_cli.__main__ import main; code = main();"
    program += "sys.exit(99 if signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL else code)"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-c", program, *arguments]
        environ = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=environ)
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


_MODELS = {"kubernetes", "aiohttp", "yaml", "celpy", "ddpjob_operator.api", "ddpjob.client"}
#: What no command needs before the first answer of the API server if it only reads.
_OTHERS = {
    *(
        "celpy",
        "jsonschema",
        "kubernetes.aio.dynamic",
        "kubernetes.client",
        "plotext",
        "requests",
        "rich.live",
        "urllib3",
    ),
    *(f"ddpjob.client.{module}" for module in ("files", "functions", "inspection", "logs")),
}
_SPEC = {"ddpjob_operator.api.spec", "ddpjob_operator.core.model"}
_REPORT = {f"ddpjob_cli.{module}" for module in ("curves", "explanation", "report_page")}
_ABOUT_A_JOB = (
    *("status", "wait", "explain", "events", "report"),
    *("suspend", "resume", "restart", "delete"),
)
#: What no command needs that reads a file and no cluster.
_FOR_A_FILE = {"aiohttp", "celpy", "ddpjob.client", "kubernetes", "rich.console"}
#: What shows the answer.
_SCREEN = {"rich", "rich.table", "rich.console"}


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["--help"], {*_MODELS, "pydantic"}),
        (["--version"], {*_MODELS, "pydantic", "rich"}),
        (["status", "--help"], _MODELS),
        (["validate", str(EXAMPLES[0])], _FOR_A_FILE),
        (["render", str(EXAMPLES[0])], _FOR_A_FILE | {"ddpjob_operator.core.model"}),
        (["render", str(EXAMPLES[0]), "--pods"], _FOR_A_FILE),
        (["run", str(EXAMPLES[0]), "--dry-run=client"], _FOR_A_FILE | {"ddpjob_operator.core.model"}),
    ],
)
def test_a_command_imports_only_what_it_uses(arguments: list[str], unused: set[str]) -> None:
    """The imports are what a user waits for at each command."""
    imported, _ = imported_by(arguments)
    assert imported & unused == set()


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        *(([command, "j"], _OTHERS | _SPEC | _SCREEN | _REPORT) for command in _ABOUT_A_JOB),
        (["exec", "j", "--", "true"], _OTHERS | _SPEC | _SCREEN),
        (["list"], _OTHERS | _SPEC | _SCREEN),
        (["run", str(EXAMPLES[0])], _OTHERS | _SCREEN | {"ddpjob_operator.core.model"}),
        (
            ["run", "--no-files", "--", "true"],
            _OTHERS - {"ddpjob.client.files"} | _SCREEN | {"ddpjob_operator.core.model"},
        ),
        (["logs", "j"], _OTHERS - {"ddpjob.client.logs"} | _SPEC),
        *(([command, "j"], _OTHERS - {"ddpjob.client.inspection"} | _SPEC | _SCREEN) for command in ("top", "stacks")),
        (["plot", "j"], _OTHERS - {"ddpjob.client.logs"} | _SPEC | _SCREEN),
        (["doctor"], _OTHERS | _SPEC | _SCREEN | {"ddpjob_operator.api.crd", "ddpjob_operator.scheduling"}),
    ],
)
def test_before_its_first_request_a_command_imports_only_what_it_needs_for_it(
    arguments: list[str], unused: set[str], tmp_path: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # without listen(), so that the connection is refused
        server = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        imported, errors = imported_by(arguments, KUBECONFIG=str(tmp_path / "kubeconfig"), no_proxy="*")
    assert "Connection refused" in errors
    assert imported & unused == set()


def imported_by(arguments: list[str], **variables: str) -> tuple[set[str], str]:
    """The modules that a command has imported at its end, and what it wrote to standard error."""
    program = "import sys; from ddpjob_cli.__main__ import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **variables})
    return set(done.stdout.splitlines()[-1].split()), done.stderr


def test_a_command_does_not_search_its_modules_for_unreachable_objects() -> None:
    """Such searches were a third of the CPU time of a command: some during the imports, two when the interpreter ends."""
    program = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 10_000))  # the first one that is registered runs last
from ddpjob_cli.__main__ import main
before = sum(generation["collections"] for generation in gc.get_stats())
main(["list", "--kubeconfig", "absent"])
print(sum(generation["collections"] for generation in gc.get_stats()) - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]


def test_certificates_of_the_system_are_read_by_the_first_connection() -> None:
    """aiohttp makes a context for them while it is imported, which the connection to an API server does not use."""
    program = """
import ssl
from ddpjob_cli import late_certificates
read = []
late_certificates._read = read.append
late_certificates.read_certificates_late()
context = ssl.create_default_context()
assert not read
assert context.verify_mode is ssl.CERT_REQUIRED
context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="example.com")
context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="example.com")
assert read == [context]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_program_that_uses_the_client_can_use_all_of_kubernetes() -> None:
    program = """
import ddpjob.client
import kubernetes
assert kubernetes.__version__ and kubernetes.aio.__version__
assert kubernetes.client.V1Pod is not kubernetes.aio.client.V1Pod
from kubernetes import aio, config
from kubernetes.aio import watch
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--local", "absent.yaml"], "absent.yaml: cannot be read (No such file or directory)"),
        (["validate", "/"], "/: cannot be read (Is a directory); give the path of a file in YAML"),
        (
            ["init", "/absent/job.yaml", "--recipe", "digits"],
            "/absent/job.yaml: No such file or directory; check the path",
        ),
        (["run", str(EXAMPLES[0]), "--set", "nodes={"], "; quote it, as in --set 'FIELD="),
        (["logs", "j", "--grep", "("], "put a \\ before characters that mean themselves"),
        (["run", "--local", "--nodes", "2", "--", "python", "absent.py"], "absent.py does not exist; correct the path"),
        (["validate", __file__], "to write a DDPJob for it: ddpjob init --script"),
        (["logs", "j", "--rank", "a"], "give ranks such as 0,3-5"),
        (["wait", "j", "--timeout", "soon"], "give one such as 90s"),
        (["-A", "status", "j"], "name it with -n, or find a job with ddpjob list -A"),
        (
            ["suspend", ".ddpjob/runs/j"],
            "The commands wait, status, logs, explain, top, stacks, plot, report, delete also take the directory",
        ),
        (["status", "./absent"], "absent: this is not the directory of a local run, such as .ddpjob/runs/"),
    ],
)
def test_an_error_names_the_next_step(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
