"""The fixtures of tests with the real operator process."""

from operator_fixtures import client, cluster, namespace, operator_process

__all__ = ["client", "cluster", "namespace", "operator_process"]
