from pathlib import Path

from local_command import LocalCommand

EXAMPLES = Path(__file__).parents[3] / "manifests/examples"


def test_resnet18_says_which_gpus_are_missing(tmp_path: Path) -> None:
    with LocalCommand(EXAMPLES / "resnet18-cifar10.yaml", tmp_path) as command:
        outcome = command.outcome(60)
    assert outcome.exit_code == 2
    assert "2 x 4 = 8, but this machine has" in outcome.output
