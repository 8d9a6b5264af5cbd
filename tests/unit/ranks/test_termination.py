"""What a rank leaves behind as its termination message."""

import errno
import fcntl
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddpjob_ranks import contract, termination
from ddpjob_ranks.errors import ConfigError


@pytest.fixture
def message(tmp_path, monkeypatch):
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setenv(contract.DDPJOB_TERMINATION_LOG, str(path))
    return path


def of(error: Exception, *, echo: bool = False, rank: int = 3) -> str:
    try:
        raise error  # noqa: TRY301 - only a raised exception has a traceback
    except Exception as caught:  # noqa: BLE001 - any will do
        return termination.of_exception(caught, rank=rank, echo=echo)


def test_it_names_the_rank_first_and_ends_with_the_exception():
    lines = of(ValueError("no such thing")).splitlines()
    assert lines[0] == "rank 3"
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "ValueError: no such thing"


@pytest.mark.parametrize("text", ["x" * 5000, "ü" * 5000, "line\n" * 500])
def test_it_fits_and_keeps_the_end(message, text):
    termination.write(of(ValueError(text + "the end")), echo=False)
    left = message.read_bytes()
    assert len(left) <= contract.TERMINATION_MESSAGE_MAX_BYTES
    assert left.startswith(b"rank 3\n")
    assert left.decode().endswith("the end")


def test_the_first_cause_replaces_an_echo_and_is_not_replaced(message):
    termination.write(of(RuntimeError("closed"), echo=True), echo=True)
    assert termination.is_echo(message.read_text())
    termination.write(of(ValueError("first"), rank=0), echo=False)
    assert not termination.is_echo(message.read_text())
    termination.write(of(ValueError("second"), rank=1), echo=False)
    termination.write(of(RuntimeError("closed"), rank=2, echo=True), echo=True)
    assert message.read_text().splitlines()[-1] == "ValueError: first"


def test_an_absent_file_is_not_created(message):
    message.unlink()
    termination.write("rank 0 failed", echo=False)
    assert not message.exists()


@pytest.mark.usefixtures("message")
def test_what_cannot_be_written_is_printed(monkeypatch, capsys):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    termination.write("rank 0\nwrong", echo=False, printed="wrong")
    assert capsys.readouterr().err == "wrong\n"


@pytest.mark.parametrize("is_absent", [False, True])
def test_what_several_ranks_end_with_is_printed_once_and_other_causes_too(message, monkeypatch, capsys, is_absent):
    if is_absent:  # as outside a cluster
        message.unlink()
        monkeypatch.setenv(contract.DDPJOB_TERMINATION_LOG, termination.variables({})[contract.DDPJOB_TERMINATION_LOG])
    else:
        assert termination.variables({contract.DDPJOB_TERMINATION_LOG: str(message)}) == {}
    for rank, cause in enumerate(["no width\n" * 500, "no width\n" * 500, "no data"]):
        termination.write(f"rank {rank}\n{cause}", echo=False, printed=cause)
    assert capsys.readouterr().err == "no width\n" * 500 + "\nno data\n"


def test_a_cause_is_printed_by_each_rank_that_shares_no_message(message, capsys):
    message.unlink()
    for _ in range(2):
        termination.refuse(ConfigError("no width"))
    assert capsys.readouterr().err == "no width\n" * 2


def test_a_cause_stays_when_all_ranks_write_at_once(message):
    with ThreadPoolExecutor(8) as ranks:
        for _ in range(100):
            message.write_text("")
            written = [ranks.submit(termination.write, f"rank {rank} lost a peer\n", echo=True) for rank in range(7)]
            written.insert(4, ranks.submit(termination.write, "rank 7\ncause", echo=False))
            for one in written:
                one.result()
            assert message.read_text() == "rank 7\ncause"
