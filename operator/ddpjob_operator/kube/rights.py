"""Which rights this operator has, by the API server's own answer."""

import asyncio
import logging
from collections.abc import Sequence

from ddpjob_operator.api import names
from ddpjob_operator.core.render.network_policy import NETWORK_POLICY
from ddpjob_operator.scheduling.interface import Right
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, RejectedError
from ddpjob_operator.transport.resources import ACCESS_REVIEWS

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
_POLICY_RIGHTS = tuple(
    Right(verb, NETWORK_POLICY.api_version.partition("/")[0], NETWORK_POLICY.plural)
    for verb in ("get", "list", "watch", "create", "delete")
)


async def is_allowed(client: Client, right: Right, namespace: str | None) -> bool:
    """Whether this operator has the right in the namespace, or in all with None; not, where it may not ask.

    Raises ApiError if there is no answer.
    """
    attributes = {"verb": right.verb, "group": right.group, "resource": right.resource, "namespace": namespace or ""}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    try:
        answer = await client.create(ACCESS_REVIEWS, None, review)
    except RejectedError:
        return False
    return bool(answer["status"].get("allowed"))


async def usable(client: Client, scopes: Sequence[str | None]) -> Sequence[str | None]:
    """Those of the namespaces in which this operator may read DDPJobs; all of them if it may in none.

    Rights that are missing in a namespace that is gone, or forbidden as a whole, say nothing about the others.
    """
    read = Right("list", names.GROUP, names.PLURAL)
    return [scope for scope in scopes if await is_allowed(client, read, scope)] or scopes


async def may_make_network_policies(client: Client, scopes: Sequence[str | None]) -> bool:
    """Whether this operator has all rights on NetworkPolicies in these namespaces (None: all). The log says what is missing."""
    while True:
        try:
            denied = {
                right.verb
                for scope in await usable(client, scopes)
                for right in _POLICY_RIGHTS
                if not await is_allowed(client, right, scope)
            }
        except ApiError as error:
            logger.warning("%s; asking again in %.0f s", error, RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if denied:
            logger.warning(
                "jobs get no NetworkPolicies: this operator may not %s networkpolicies.networking.k8s.io;"
                " every pod that reaches a rank can join its training",
                ", ".join(sorted(denied)),
            )
        return not denied
