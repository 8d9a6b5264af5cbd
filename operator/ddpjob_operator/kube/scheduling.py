"""Reads which scheduling provider the cluster serves and which of its rights the operator has."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from ddpjob_operator.kube.rights import is_allowed, usable
from ddpjob_operator.scheduling.discovery import Choice, candidates_of, choose
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError

logger = logging.getLogger(__name__)

#: A server that has failed, or a kind that is being installed, may be there a moment later; a feature gate takes
#: minutes, or is never switched on.
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0


async def discover(client: Client, setting: str, scopes: Sequence[str | None]) -> Mapping[str | None, Choice]:
    """The provider for this setting in each of these namespaces (None: all). Waits for one that is named and not served yet.

    What it waits for is logged once, and again only when it is something else. The pauses between two looks double.
    A namespace that is gone, or in which the operator may do nothing, has that of the first of the others.
    """
    said, pause = "", FIRST_RETRY_SECONDS
    while True:
        try:
            return await _discover(client, setting, scopes)
        except (ApiError, LookupError) as error:
            if str(error) != said:
                said, pause = str(error), FIRST_RETRY_SECONDS
                logger.warning("%s; the operator waits for that, and looks again at least every minute", said)
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_RETRY_SECONDS)


async def _discover(client: Client, setting: str, scopes: Sequence[str | None]) -> Mapping[str | None, Choice]:
    candidates = candidates_of(setting)
    served = {candidate.group: await client.group_versions(candidate.group) for candidate in candidates}
    wanted = [
        right
        for candidate in candidates
        if candidate.of_versions(served[candidate.group]) is not None
        for right in candidate.rights
    ]
    choices = {
        scope: choose(setting, served, [right for right in wanted if not await is_allowed(client, right, scope)])
        for scope in await usable(client, scopes)
    }
    return {scope: choices.get(scope, next(iter(choices.values()))) for scope in scopes}
