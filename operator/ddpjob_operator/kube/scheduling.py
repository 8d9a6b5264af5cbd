"""Reads which scheduling provider the cluster serves and which of its rights the operator has."""

import asyncio
import logging
from collections.abc import Sequence

from ddpjob_operator.kube.rights import is_allowed
from ddpjob_operator.scheduling.discovery import Choice, candidates_of, choose
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


async def discover(client: Client, setting: str, scopes: Sequence[str | None]) -> Choice:
    """The provider for this setting in these namespaces (None: all). Waits for one that is named and not served yet."""
    while True:
        try:
            return await _discover(client, setting, scopes)
        except (ApiError, LookupError) as error:
            logger.warning("%s; looking again in %.0f s", error, RETRY_SECONDS)
        await asyncio.sleep(RETRY_SECONDS)


async def _discover(client: Client, setting: str, scopes: Sequence[str | None]) -> Choice:
    candidates = candidates_of(setting)
    served = {candidate.group: await client.group_versions(candidate.group) for candidate in candidates}
    wanted = {
        (right, scope)
        for candidate in candidates
        if candidate.of_versions(served[candidate.group]) is not None
        for right in candidate.rights
        for scope in scopes
    }
    denied = {right for right, scope in wanted if not await is_allowed(client, right, scope)}
    return choose(setting, served, denied)
