"""The fixtures of tests with the real operator process."""

from support.operator_fixtures import client, cluster, leased_operator, namespace, new_namespace, operator_process

__all__ = ["client", "cluster", "leased_operator", "namespace", "new_namespace", "operator_process"]
