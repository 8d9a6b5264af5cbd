"""The launcher that starts the ranks of a pod again in place: the pod and its memory outlive a rank that fails.

All ranks are forked from a template (`template`). When one fails, its generation ends on all nodes (`generation`): each
survivor saves its state in memory that the launcher owns, and each launcher starts its ranks again.

Where the operator replaces a pod of a running attempt, the ranks of the other pods wait for it in the next generation, for a
limited time. That is also what follows when a pod is asked to stop: its ranks stop after the same step as all others, whose
pods continue.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory

from ddpjob_ranks import contract, generation, slots, termination
from ddpjob_ranks.launch import identity, launcher
from ddpjob_ranks.launch.identity import Node, Worker
from ddpjob_ranks.launch.launcher import Ranks
from ddpjob_ranks.launch.template import Template, TemplateError, is_asked_to_stop

#: What ranks import. torch._dynamo is what the first step of an optimizer imports, in seconds.
MODULES = ("torch", "torch._dynamo", "ddpjob_session.session")
#: The exit codes after which another start of the same ranks would not help, or is not wanted.
FINAL_EXIT_CODES = frozenset(
    {contract.EXIT_BAD_CONFIG, contract.EXIT_CHECKPOINTED, contract.EXIT_FENCED, contract.EXIT_TERMINATED}
)
#: Those of them that say that some pod was asked to stop.
STOPPED_EXIT_CODES = frozenset({contract.EXIT_CHECKPOINTED, contract.EXIT_TERMINATED})
#: What the launcher says of the end of a generation where that of its first rank would mislead.
CAUSES = {
    **dict.fromkeys(STOPPED_EXIT_CODES, "another pod was asked to stop"),
    contract.EXIT_HUNG: "a rank made no progress",
}
#: After so many restarts in place in a row without a further step, the next failure ends the run: fresh pods may help.
MAX_RESTARTS_WITHOUT_PROGRESS = 2


def run(program: Sequence[str], environ: Mapping[str, str], modules: Sequence[str] = ()) -> int:
    """Run Python with the arguments `program` for each worker of the node, starting all again as often as the environment allows.

    `modules` are imported once for all of them.

    Returns:
        As `launcher.run`, of the generation whose failure ended the run.
    """
    # torch's own rendezvous ("env://") then uses the store that is there, in each generation under another prefix.
    environ = {**environ, contract.TORCHELASTIC_USE_AGENT_STORE: "True"}
    sockets = TemporaryDirectory(prefix="pymp-", ignore_cleanup_errors=True)  # a data worker may be about to end
    with launcher.signals_blocked() as mask, sockets as folder:
        template = Template([*MODULES, *modules], environ, launcher.dies_with_this_process(mask), folder)
        try:
            return _Supervisor(program, environ, template).run(identity.in_place_restarts(environ))
        except TemplateError:
            if is_asked_to_stop():
                return contract.EXIT_TERMINATED
            text = f"the process that ranks are forked from ({', '.join(MODULES)}) ended; its output says why"
            print(f"ddpjob launcher: {text}", file=sys.stderr)
            termination.write(text, echo=False)
            return contract.EXIT_PROGRAM_ERROR


def _stopped_with(message: str) -> int:
    """The end of a pod that is asked to stop while its ranks wait for another one: what they had saved before counts."""
    termination.clear()
    termination.write(message, echo=False)
    return contract.EXIT_CHECKPOINTED


def is_stuck(reached: Sequence[int]) -> bool:
    """Whether the last restarts in place brought no progress, by the step that each generation came to.

    A failure within a GPU is noticed some steps later, now more and now fewer, so a step that was reached before is none either.
    """
    before, last = reached[:-MAX_RESTARTS_WITHOUT_PROGRESS], reached[-MAX_RESTARTS_WITHOUT_PROGRESS:]
    return bool(before) and max(last) <= max(before)


def is_final(
    code: int, environ: Mapping[str, str], *, has_begun: bool, seconds: float, others_have_begun: bool = False
) -> bool:
    """Whether no further start is wanted after ranks that failed with this code so long after they were started.

    `has_begun`: they had begun to train, with a session. `others_have_begun`: those of another pod have begun the next generation.
    """
    limit = environ.get(contract.DDPJOB_REPLACEMENT_SECONDS)
    if str(code) in environ.get(contract.DDPJOB_FINAL_EXIT_CODES, "").split(","):
        return True
    if limit is None:
        return code in FINAL_EXIT_CODES
    if code == contract.EXIT_PEER_LOST and not has_begun:
        return seconds >= int(limit) and not others_have_begun  # they have waited for a pod that was not replaced
    return code in FINAL_EXIT_CODES - (STOPPED_EXIT_CODES if has_begun else frozenset())


class _Supervisor:
    def __init__(self, program: Sequence[str], environ: Mapping[str, str], template: Template) -> None:
        self._program, self._environ, self._template = program, environ, template
        self._node = identity.node(environ)
        self._server = self._serve_store()
        self._state = os.memfd_create("ddpjob-state")
        self._own = {worker.rank: os.memfd_create(f"ddpjob-rank-{worker.rank}") for worker in self._node.workers}
        self._stores = os.memfd_create("ddpjob-stores")
        self._number = 1
        """Of the generation that runs."""
        self._reached: list[int] = []
        """The step that each generation which failed had come to."""

    def run(self, num_restarts: int) -> int:
        environ = dict(self._environ)
        stop_at: float | None = None
        saved: str | None = None  # the message of a generation that ended because another pod was asked to stop
        if replaced := generation.replacements(self._environ):
            generation.record_store(self._stores, replaced.get(0, 0), generation.JOINED_SLOT)
            code, self._number = self._generation_to_join()
            if code != contract.EXIT_SUCCESS:
                return code
        while True:
            try:
                ranks = self._generation(environ, num_restarts, stop_at)
            except TemplateError:
                if saved is not None and is_asked_to_stop():
                    return _stopped_with(saved)
                raise
            if not ranks.to_be_restarted:
                is_stopped = ranks.exit_code == contract.EXIT_TERMINATED and not self._has(generation.BEGUN_SLOT)
                return _stopped_with(saved) if saved is not None and is_stopped else ranks.exit_code
            self._number += 1
            stop_at = ranks.stop_at
            cause = CAUSES.get(ranks.exit_code, ranks.cause)
            print(
                f"ddpjob launcher: {cause}; all ranks start again in place ({len(self._reached)} of at most {num_restarts}"
                " times)",
                file=sys.stderr,
                flush=True,
            )
            environ[contract.DDPJOB_IN_PLACE_CAUSE] = "" if ranks.exit_code == contract.EXIT_PEER_LOST else cause
            saved = termination.read() if ranks.exit_code == contract.EXIT_CHECKPOINTED else None
            termination.clear()

    def _has(self, slot: int) -> bool:
        """Whether a rank of this generation has written into this slot."""
        return any(slots.step_of(memory, slot) == self._number for memory in self._own.values())

    def _serve_store(self) -> int | None:
        """The process that serves the store; None on other nodes, and where one rank is alone."""
        first = self._node.workers[0]
        if first.rank > 0 or first.world_size == 1:
            return None
        return self._template.fork(["-m", "ddpjob_ranks.launch.store"], {**self._environ, **first.environment()}, [])

    def _generation_to_join(self) -> tuple[int, int]:
        """The exit code of the process that finds it out, and the number of the generation."""
        memory, program = os.memfd_create("ddpjob-join"), ["-m", "ddpjob_ranks.launch.join"]

        def start(worker: Worker) -> int:
            return self._template.fork(program, {**self._environ, **worker.environment()}, [memory])

        process = Ranks(Node(workers=self._node.workers[:1]), start, server=self._server)
        process.wait()
        number = slots.step_of(memory)
        os.close(memory)
        # The request may have come when that process had already ended well.
        return process.exit_code or (contract.EXIT_TERMINATED if process.are_stopped else 0), number

    def _generation(self, environ: Mapping[str, str], num_restarts: int, stop_at: float | None) -> Ranks:
        """Start all workers, and wait until they have ended."""
        reader, writer = os.pipe()
        count = {contract.DDPJOB_GENERATION: str(self._number), "TORCHELASTIC_RESTART_COUNT": str(self._number)}
        started = time.monotonic()

        def start(worker: Worker) -> int:
            variables = {**environ, **worker.environment(), **count}
            inherited = [reader, self._state, self._own[worker.rank], self._stores]
            return self._template.fork(self._program, variables, inherited)

        def end(code: int, others_have_begun: bool) -> bool:
            has_begun, seconds = self._has(generation.BEGUN_SLOT), time.monotonic() - started
            if self._has(generation.COMPLETE_SLOT) or is_final(
                code, self._environ, has_begun=has_begun, seconds=seconds, others_have_begun=others_have_begun
            ):
                return False
            self._reached.append(max(slots.step_of(memory, generation.DONE_SLOT) for memory in self._own.values()))
            if len(self._reached) > num_restarts or is_stuck(self._reached):
                return False
            return os.write(writer, bytes(len(self._own))) > 0  # a byte for each rank

        def follow() -> int | None:
            first = self._node.workers[0]
            if first.world_size == len(self._node.workers):  # none runs elsewhere, nor in another task of Slurm here
                return None
            program = ["-m", "ddpjob_ranks.launch.follow", str(self._number)]
            with suppress(TemplateError):  # the ranks can go on without it, and notice such an end themselves
                return self._template.fork(program, {**environ, **first.environment()}, [self._stores])
            return None

        def can_stop() -> bool:  # ranks that start again may have a state in memory, which another pod may keep
            return self._number == 1 or self._has(generation.BEGUN_SLOT)

        generation.forget_joined(self._stores, len(self._own))
        try:
            ranks = Ranks(self._node, start, end, self._server, follow, can_stop, stop_at)
            ranks.wait()
            return ranks
        finally:
            os.close(reader)
            os.close(writer)
