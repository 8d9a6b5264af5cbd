"""The training programs: a gang that meets at the master's name, trains together, and fails in the ways that gangs do.

They also model the fence of the checkpoint folder, from the variables that their pods really carry.
"""

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.api.names import contract
from ddpjob_operator.core.times import rfc3339
from simulation.api_server import SERVICES, ApiServer
from simulation.containers import Container, Ended, Fate, Gang, Owner

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    boom()\nValueError: boom\n'
ECHO = 'Traceback (most recent call last):\n  File "t.py", line 1\nRuntimeError: Connection closed by peer\n'
#: How long ranks wait for each other at the start.
RENDEZVOUS_SECONDS = 300.0
COMMIT_SECONDS = 10.0
#: How long the ranks of a new pod need to join the others, once they can reach each other.
JOIN_SECONDS = 3.0
#: How long a new pod may take until then, for example for its imports.
START_SECONDS = (0.0, 97.0)
#: How a main process ends that was killed or asked to stop.
LOST_CODES = frozenset({137, contract.EXIT_TERMINATED, contract.EXIT_CHECKPOINTED})


#: Exit code, termination message and the kubelet's reason of a rank that fails by itself.
ENDS = {
    "fail": (contract.EXIT_PROGRAM_ERROR, TRACEBACK, ""),
    "out_of_memory": (137, "", "OOMKilled"),
    "killed": (137, "", ""),
    "bad_config": (contract.EXIT_BAD_CONFIG, "config: epochs is 0", ""),
}


class Programs:
    """Everything that runs in containers."""

    def __init__(
        self, server: ApiServer, random: Random, fates: list[Fate], *, train_seconds: float, sigterm: str
    ) -> None:
        """`sigterm` is what programs do on it: exit, save or ignore."""
        self._success = Fate(kind="succeed", after_seconds=train_seconds)
        self._server = server
        self._random = random
        self._fates = fates
        self._sigterm = sigterm
        self.gangs: dict[tuple[str, int], Gang] = {}
        self._claims: dict[str, Owner] = {}
        self.ended: Callable[[Container], None] = lambda _: None
        self.commits: list[Owner] = []
        """Of each commit, in order: who wrote it."""
        self.timed_out: list[tuple[str, int]] = []
        """The jobs and attempts in which new pods have waited to the end for ranks that had succeeded, or for each other."""

    def start(self, container: Container) -> None:
        """A container begins."""
        key, rank = container.job_and_attempt, container.rank
        gang = self.gangs.setdefault(key, Gang(num_nodes=int(container.variables[contract.NNODES])))
        gang.ranks[rank] = container
        if container.replacement and gang.met_at is not None:
            self._wait(gang)
            self._later(JOIN_SECONDS + self._random.choice(START_SECONDS), self._join, gang)
        if rank == 0 and not self._claim(container):
            self._later(0.5, self.end, container, contract.EXIT_FENCED)
            return
        self._meet(key, gang)
        self._later(RENDEZVOUS_SECONDS, self._give_up_waiting, container, rank)

    def end(self, container: Container, code: int, message: str = "", reason: str = "") -> None:
        """A main container ends; its peers notice."""
        if container.exit is not None:
            return
        container.exit = Ended(code=code, finished_at=rfc3339(self._server.now), reason=reason, message=message)
        self.ended(container)
        gang = self._gang_of(container)
        if not code or gang.met_at is None or gang.ranks.get(container.rank) is not container:
            return
        if container.waits_for_pods and code in LOST_CODES:
            self._wait(gang)
        elif not gang.fate.peers_hang:
            for rank, peer in gang.ranks.items():
                if peer.exit is None:
                    self._later(self._random.choice((0.2, 1.0)), self._lose_peer, peer, rank)

    def _wait(self, gang: Gang) -> None:
        if gang.waits_since is None:
            gang.waits_since = self._now()
            if gang.coming is not None:
                gang.coming.cancel()
            seconds = float(gang.ranks[0].variables[contract.DDPJOB_REPLACEMENT_SECONDS])
            self._later(seconds, self._end_waiting, gang, gang.waits_since)

    def _join(self, gang: Gang) -> None:
        if gang.waits_since is None or any(container.exit for container in gang.ranks.values()):
            return
        if not any(
            container.has_met for container in gang.ranks.values()
        ):  # none of them has the state of the training
            return
        first = gang.ranks[0]
        if first.replacement and not self.master_of(*first.owner):  # the others look for the store of its pod
            return
        gang.waits_since = None
        gang.num_restarts += 1
        if first.replacement and not first.has_met:
            self._later(COMMIT_SECONDS, self._commit, first)
        self._train(gang)

    def _end_waiting(self, gang: Gang, since: float) -> None:
        if gang.waits_since == since:
            new = [c for c in gang.ranks.values() if c.exit is None and not c.has_met]
            others = [c for c in gang.ranks.values() if c not in new]
            if new and (not others or any(c.exit and c.exit.code == 0 for c in others)):
                self.timed_out.append(new[0].job_and_attempt)
            for container in gang.ranks.values():
                self._lose_peer(container, rank=1)

    def restart_in_place(self, gang: Gang) -> None:
        """A rank fails within its pod, and all of them start again in their pods."""
        is_whole = gang.met_at is not None and not any(container.exit for container in gang.ranks.values())
        most = int(gang.ranks[0].variables.get(contract.DDPJOB_IN_PLACE_RESTARTS, "0")) if is_whole else 0
        if gang.waits_since is None and gang.num_restarts < most:
            gang.num_restarts += 1
            self._train(gang)

    def sigterm(self, container: Container, grace_seconds: float) -> None:
        """Somebody asks it to stop."""
        save_seconds = 1.0
        if self._sigterm == "exit":
            self._later(min(0.3, grace_seconds), self.end, container, contract.EXIT_TERMINATED)
        elif self._sigterm == "save" and grace_seconds > save_seconds:
            self._later(save_seconds, self._stop_with_checkpoint, container)

    def log_of(self, container: Container | None) -> str:
        """What it has printed."""
        if container is None:
            return ""
        gang = self._gang_of(container)
        lines = []
        if gang.met_at is not None and gang.ranks.get(0) is container and container.has_met:
            stands_since = gang.waits_since if gang.waits_since is not None else gang.hangs_at
            now = stands_since if stands_since is not None else self._now()
            progress = {"step": int((now - gang.met_at) * 10), "totalSteps": 100000}
            if gang.num_restarts:
                progress[contract.PROGRESS_IN_PLACE_RESTARTS] = gang.num_restarts
            if gang.joined_replacements:
                progress[contract.PROGRESS_JOINED_REPLACEMENTS] = gang.joined_replacements
            lines.append(contract.PROGRESS_PREFIX + json.dumps(progress))
        if container.exit is not None and container.exit.code:
            lines.append(container.exit.message or TRACEBACK)
        return "\n".join(lines)

    def release(self) -> None:
        """Those that hang go on and come to a good end; so does everything that starts from now on."""
        self._fates.clear()
        for gang in self.gangs.values():
            gang.hangs_at = None
            if gang.met_at is not None and gang.fate.kind in ("hang", "straggle"):
                for container in gang.ranks.values():
                    if container.has_met:
                        self._later(1.0, self.end, container, 0)

    def stuck_seconds(self, kind: str) -> float:
        """For how long some gang of this fate has had ranks that never end; 0 where there is none."""
        stuck = [
            self._now() - gang.trains_since - gang.fate.after_seconds
            for gang in self.gangs.values()
            if gang.met_at is not None and gang.fate.kind == kind and any(c.exit is None for c in gang.ranks.values())
        ]
        return max(stuck, default=0.0)

    def look_for_the_master(self) -> None:
        """A Service has changed: whoever waits for rank 0 may find it now."""
        for key, gang in self.gangs.items():
            self._meet(key, gang)
            if gang.waits_since is not None:
                self._later(JOIN_SECONDS, self._join, gang)

    def master_of(self, job_uid: str, attempt: int, replacement: int = 0) -> bool:
        """Whether some Service leads to this pod of rank 0 of this attempt, and to no other."""
        wanted = {names.LABEL_JOB_UID: job_uid, names.LABEL_ATTEMPT: str(attempt), names.LABEL_RANK: "0"}
        if replacement:
            wanted[names.LABEL_REPLACEMENT] = str(replacement)
        return any(service["spec"].get("selector") == wanted for service in self._server.all(SERVICES))

    def _meet(self, key: tuple[str, int], gang: Gang) -> None:
        if gang.met_at is not None or len(gang.ranks) < gang.num_nodes:
            return
        if any(container.exit for container in gang.ranks.values()) or not self.master_of(*key):
            return
        gang.met_at = self._now()
        self._train(gang)
        self._later(COMMIT_SECONDS, self._commit, gang.ranks[0])

    def _train(self, gang: Gang) -> None:
        """From now on, until the fate that comes next; all ranks have met."""
        for container in gang.ranks.values():
            container.has_met = True
        gang.joined_replacements = sum(container.replacement for container in gang.ranks.values())
        gang.fate = self._fates.pop(0) if self._fates else self._success
        gang.trains_since = self._now()
        gang.hangs_at = self._now() + gang.fate.after_seconds if gang.fate.kind == "hang" else None
        if gang.coming is not None:
            gang.coming.cancel()
        gang.coming = self._later(gang.fate.after_seconds, self._fulfil, gang)

    def _fulfil(self, gang: Gang) -> None:
        fate = gang.fate
        chosen = gang.ranks[fate.rank % gang.num_nodes]
        match fate.kind:
            case "succeed":
                self._commit(gang.ranks[0])
                for container in gang.ranks.values():
                    self._later(self._random.choice((0.0, 0.3, 3.0)), self.end, container, 0)
            case "straggle":
                for container in gang.ranks.values():
                    if container is not chosen or gang.num_nodes == 1:
                        self.end(container, 0)
            case "stop":
                for container in gang.ranks.values():
                    self._stop_with_checkpoint(container)
            case "hang":
                return
            case _:
                code, message, reason = ENDS[fate.kind]
                self.end(chosen, code, message, reason)

    def _stop_with_checkpoint(self, container: Container) -> None:
        gang = self._gang_of(container)
        is_first = gang.ranks.get(0) is container
        if gang.met_at is None or container.exit is not None or (is_first and not self._commit_now(container)):
            self.end(container, contract.EXIT_TERMINATED)
            return
        step = 1000 * container.job_and_attempt[1]
        message = f"{contract.TERMINATION_CHECKPOINT_PREFIX}{step}" if is_first else ""
        self.end(container, contract.EXIT_CHECKPOINTED, message)

    def _lose_peer(self, container: Container, rank: int) -> None:
        if "ddpjob_trainer" in container.command:
            self.end(container, contract.EXIT_PEER_LOST, f"rank {rank}{contract.TERMINATION_ECHO_SUFFIX}")
        else:
            self.end(container, 1, ECHO)

    def _give_up_waiting(self, container: Container, rank: int) -> None:
        if not container.has_met and container.exit is None:
            self._lose_peer(container, rank)

    # --- Checkpoints --------------------------------------------------------------------------------------------------

    def _claim(self, container: Container) -> bool:
        """Rank 0 takes the folder, unless a later attempt of the same job, or a later pod of rank 0 in this one, has it."""
        folder, mine = self._folder_and_id(container)
        claim = self._claims.get(folder)
        if claim is not None and claim[0] == mine[0] and claim[1:] > mine[1:]:
            return False
        self._claims[folder] = mine
        return True

    def _commit(self, container: Container) -> None:
        """Save from time to time, or leave if the folder belongs to somebody else by now."""
        if container.exit is None:
            if self._commit_now(container):
                self._later(COMMIT_SECONDS, self._commit, container)
            else:
                self.end(container, contract.EXIT_FENCED)

    def _commit_now(self, container: Container) -> bool:
        folder, mine = self._folder_and_id(container)
        if self._claims.get(folder) != mine:
            return False
        self.commits.append(mine)
        return True

    @staticmethod
    def _folder_and_id(container: Container) -> tuple[str, Owner]:
        variables = container.variables
        folder = f"{variables[contract.DDPJOB_NAMESPACE]}/{variables[contract.DDPJOB_NAME]}"
        return folder, container.owner

    def _gang_of(self, container: Container) -> Gang:
        return self.gangs[container.job_and_attempt]

    def _later(self, seconds: float, call: Any, *arguments: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, call, *arguments)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
