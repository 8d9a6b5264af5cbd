"""The kubectl command of `ddpjob exec`."""

from ddpjob_cli.commands.exec import exec_arguments
from ddpjob_cli.options import CLUSTER


def test_kubectl_gets_the_cluster_and_the_command_as_they_are_given(monkeypatch) -> None:
    monkeypatch.setattr(CLUSTER, "context", "prod")
    monkeypatch.setattr(CLUSTER, "kubeconfig", None)

    assert exec_arguments("team-a", "net-1-0", ["sh", "-c", "echo $HOME"], interactive=False) == [
        *("--context", "prod", "exec", "--namespace", "team-a", "net-1-0", "--container", "trainer"),
        *("--", "sh", "-c", "echo $HOME"),
    ]
