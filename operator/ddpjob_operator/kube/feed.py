"""kopf's events on their way into the store, and a check that they still come.

kopf's watch can end without a word (nolar/kopf#1276). On a quiet cluster silence is normal, so it is measured against
what is known from elsewhere: the answers to our own status writes and the audit show versions that kopf must deliver too.
"""

import time
from typing import Any

from ddpjob_operator.core.model import Body
from ddpjob_operator.kube.cache import Cache


class JobFeed:
    """Feeds one cache."""

    def __init__(self, jobs: Cache[Any]) -> None:
        self._jobs = jobs
        self._delivered: dict[str, int] = {}
        self._behind_since: dict[str, float] = {}

    def take(self, event_type: str | None, body: Body) -> None:
        """An event of kopf's; the type is None for what its first list holds."""
        metadata = body["metadata"]
        namespace, version = metadata["namespace"], int(metadata["resourceVersion"])
        self._delivered[namespace] = max(version, self._delivered.get(namespace, 0))
        self._behind_since.pop(namespace, None)
        if event_type == "DELETED":
            self._jobs.remove(namespace, metadata["name"], uid=metadata["uid"])
        else:
            self._jobs.put(body)

    def silent_seconds(self) -> float:
        """For how long an event has been due in some namespace while none came there; to be asked every few seconds."""
        now = time.monotonic()
        for namespace, version in self._jobs.latest_versions().items():
            if version > self._delivered.get(namespace, 0):
                self._behind_since.setdefault(namespace, now)
            else:
                self._behind_since.pop(namespace, None)
        return now - min(self._behind_since.values(), default=now)
