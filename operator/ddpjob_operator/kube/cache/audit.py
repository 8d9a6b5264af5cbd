"""Compares every cache with the API server every few minutes.

kopf reports no deletion of an object that vanished before it had to list again, and a watch may lose an event for an unknown
reason. With the audit such a loss delays a job by minutes; without it the job would hang.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any

from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.kube.metrics import AUDIT_REPAIRS
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, is_refused

logger = logging.getLogger(__name__)


class Audit:
    """Lists what the caches hold, in pages."""

    def __init__(self, client: Client, scopes: Sequence[str | None], interval_seconds: float) -> None:
        """`scopes` are the namespaces that the operator works in; None is all of them."""
        self._client = client
        self._scopes = scopes
        self._interval_seconds = interval_seconds

    async def run(self, caches: Sequence[Cache[Any]]) -> None:
        """Audit at intervals until cancelled."""
        while True:
            await asyncio.sleep(self._interval_seconds * random.uniform(0.9, 1.1))  # noqa: S311 jitter is no secret
            for cache in caches:
                try:
                    await self.compare(cache)
                except ApiError as error:
                    logger.warning("the audit of %s is postponed: %s", cache.resource.plural, error)

    async def compare(self, cache: Cache[Any]) -> int:
        """Repair one cache. Returns the number of differences; an event that is on its way counts as one.

        A namespace that is gone or forbidden holds up no other. Raises ApiError if all are, or where another try may help.
        """
        num_repairs = 0
        errors: dict[str | None, ApiError] = {}
        for scope in self._scopes:
            try:
                num_repairs += (await cache.refresh(self._client, scope))[1]
            except ApiError as error:
                errors[scope] = error
        if num_repairs:
            AUDIT_REPAIRS.labels(cache.resource.plural).inc(num_repairs)
        are_all_refused = len(errors) == len(self._scopes) and all(map(is_refused, errors.values()))
        for scope, caught in errors.items():
            if are_all_refused or not is_refused(caught):
                raise caught
            logger.warning("%s of namespace %s cannot be read; others are: %s", cache.resource.plural, scope, caught)
        return num_repairs
