"""The time limits of a job. Part of the spec."""

from pydantic import Field

from ddpjob_operator.api.resource import Resource


class Deadlines(Resource):
    """Time limits of the job. None of them runs while the job is suspended."""

    queue_seconds: int | None = Field(
        default=None,
        ge=1,
        le=31_536_000,
        description="Longest time to wait for nodes for all pods. After that, the job fails. A job with minNodes runs on the nodes that it"
        " has instead, if these are minNodes or more. Not limited by default.",
    )
    full_size_seconds: int = Field(
        default=120,
        ge=1,
        le=31_536_000,
        description="With minNodes: longest time to wait for all `nodes`, counted from the first node that an attempt gets. After that,"
        " the job runs on the nodes that it has, if these are minNodes or more.",
    )
    fewer_nodes_seconds: int | None = Field(
        default=None,
        ge=1,
        le=31_536_000,
        description="With minNodes: shortest time to run on fewer than all `nodes`. After that, a pod without a program waits for each"
        " missing node while the job trains. Once these pods have nodes, all pods stop and may save their work, and the next attempt has"
        " more nodes. By default, the job requests all `nodes` only when an attempt begins for another reason.",
    )
    start_seconds: int = Field(
        default=600,
        ge=1,
        le=31_536_000,
        description="Longest time from the moment all pods have nodes until all pods run.",
    )
    hang_seconds: int = Field(
        default=900,
        ge=1,
        le=31_536_000,
        description="Longest time without progress. It applies once rank 0 has printed a progress line, and to the built-in"
        " trainer from the start, with startSeconds added until the first line. It is three times as long while rank 0"
        " reports that it evaluates or writes a checkpoint.",
    )
    finish_seconds: int = Field(
        default=3600,
        ge=1,
        le=31_536_000,
        description="Longest time from the success of the first rank to that of the last.",
    )
    active_seconds: int | None = Field(
        default=None,
        ge=1,
        le=315_360_000,
        description="Longest time of the job over all attempts, without waiting for nodes and suspension. Not limited by default.",
    )
