"""Requests to the API server: access, client, errors, kinds of objects."""

from ddpjob_operator.transport.deferred_packages import defer

# Both packages import everything that they contain; the transport needs kubernetes.aio.client and kubernetes.aio.config.
defer("kubernetes")
defer("kubernetes.aio")
