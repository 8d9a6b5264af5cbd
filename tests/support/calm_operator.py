"""The operator that never writes details of a status: those that a slow start has depend on how slow it is."""

from ddpjob_operator import __main__
from ddpjob_operator.kube.engine import status_writer

NEVER_SECONDS = 3600.0

status_writer.TICK_SECONDS = NEVER_SECONDS
status_writer.DETAILS_SECONDS = NEVER_SECONDS
status_writer.START_SECONDS = NEVER_SECONDS
__main__.main()
