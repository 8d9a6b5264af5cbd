"""A command in the README is run by CI or by a test; this table says where, and nothing in the README is left out."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

#: Command, the file that runs it, and what in that file does so.
RUN_BY = {
    "make demo": ("tests/integration/local/test_local_examples.py", "digits.yaml"),
    "make test": (".ci/run", "step test"),
    "docker build --target operator --tag ddpjob/operator:0.1.0 .": ("tests/testbed/images.py", "--target"),
    "docker build --target trainer --tag ddpjob/trainer:0.1.0 .": ("tests/testbed/images.py", "--target"),
    "helm install ddpjob-operator charts/ddpjob-operator --namespace ddpjob-system --create-namespace --wait": (
        "tests/e2e/helm_release.py",
        "--create-namespace",
    ),
    "kubectl apply -f manifests/examples/digits.yaml": (
        "tests/e2e/test_digits_trains_on_two_nodes.py",
        'EXAMPLES / "digits.yaml"',
    ),
    "kubectl apply -f manifests/crd -f manifests/operator": (
        "tests/chart/test_chart_on_a_cluster.py",
        'cluster.kubectl("apply", *files)',
    ),
    "kubectl get ddpjob digits --watch": ("tests/e2e/test_digits_trains_on_two_nodes.py", '"get", "ddpjob", "digits"'),
    "kubectl logs --follow --tail=-1 --selector ddpjob.dev/job=digits,ddpjob.dev/rank=0": (
        "tests/e2e/test_digits_trains_on_two_nodes.py",
        "ddpjob.dev/job=digits,ddpjob.dev/rank=0",
    ),
}


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.mark.parametrize("command", commands())
def test_the_command_is_run(command) -> None:
    path, sign = RUN_BY[command]

    assert sign in (REPOSITORY / path).read_text()
