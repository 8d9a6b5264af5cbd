from types import SimpleNamespace

import pytest

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError, ShortageError
from ddpjob_ranks.launch.identity import resolve
from ddpjob_trainer import ending


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("config: epochs is 0"), contract.EXIT_BAD_CONFIG),
        # Another attempt can succeed once somebody has freed space, so the operator counts it as a failed program.
        (ShortageError("preflight: rank 0 (host h): /checkpoints has 0 MiB free"), contract.EXIT_PROGRAM_ERROR),
    ],
)
def test_a_rank_that_cannot_train_says_why_in_its_own_words(error, code, monkeypatch, tmp_path) -> None:
    message = tmp_path / "termination"
    message.touch()
    monkeypatch.setenv(contract.DDPJOB_TERMINATION_LOG, str(message))
    codes = []

    def exits(code: int) -> None:
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(ending.os, "_exit", exits)
    with pytest.raises(SystemExit):
        ending.fail(error, resolve({}), SimpleNamespace(report_failure=lambda _: None))

    assert codes == [code]
    assert message.read_text() == f"rank 0\n{error}"
