"""The operator with a short time limit for silent watches and with lists in small pages."""

import kopf

from ddpjob_operator import __main__, kopf_adapter
from ddpjob_operator.transport import client

SILENCE_SECONDS = 2.0
PAGE_SIZE = 2

_settings = kopf_adapter._settings


def _impatient_settings() -> kopf.OperatorSettings:
    settings = _settings()
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.watching.chunk_size = PAGE_SIZE
    return settings


kopf_adapter._settings = _impatient_settings
client.WATCH_SILENCE_SECONDS = SILENCE_SECONDS
client.PAGE_SIZE = PAGE_SIZE
__main__.main()
