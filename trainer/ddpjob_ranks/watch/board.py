"""What ranks write for each other into the store that they share, one method for each kind of note.

Ranks exchange their status in rounds, numbered from 0. Any rank may call a round. Then every rank answers with its
status, one of them, the coordinator, decides, and its decision ends the round for all.

The methods that only write do not wait for the store's server, so they return even while its process is stopped. The
others may then wait for as long as it is.
"""

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed's own, which it exports untyped

from ddpjob_ranks.launch.rendezvous import wait_for_key
from ddpjob_ranks.watch.diagnosis import RankStatus
from ddpjob_ranks.watch.idleness import Stopwatch, Timing

#: The decision of a round after which all ranks go on.
GO_ON: Final = "go on"
POLL_SECONDS = 0.02
CALL, CLOSE = "call", "close"
#: A cause has to fit into a termination message together with a diagnosis.
MAX_CAUSE_CHARACTERS = 200


class Board:
    """The notes of all ranks, over a connection of its own: a store serves one caller at a time."""

    def __init__(self, store: Store, *, rank: int, world_size: int, timing: Timing) -> None:
        self._store = PrefixStore("watchdog", store.clone())
        self._timing = timing
        self._rank = rank
        self._ranks = range(world_size)

    # Only writing.

    def publish(self, status: RankStatus) -> None:
        """Keep this rank's status for a time when it does not respond."""
        self._store.set(f"status/{self._rank}", status.to_json())

    def publish_failure(self, cause: str) -> None:
        """This rank is about to end: by the cause, or if that is empty because it lost another rank."""
        self._store.set(f"failure/{self._rank}", cause[:MAX_CAUSE_CHARACTERS])
        self._store.append("failed", f"{self._rank} ")  # type: ignore[attr-defined]  # not in torch's stubs

    def publish_arrival(self) -> None:
        """This rank is at the end of the training. All that it publishes later arrives later."""
        self._store.set(f"arrived/{self._rank}", "")

    def call(self, number: int) -> None:
        """Start a round, if nobody has started it yet. All ranks are called at once or none is."""
        keys = [f"call/{rank}/{number}" for rank in self._ranks]
        self._store.multi_set(keys, [CALL for _ in keys])  # type: ignore[attr-defined]  # not in torch's stubs

    def close(self, number: int) -> None:
        """End this rank's own `wait_for_call`."""
        self._store.set(f"call/{self._rank}/{number}", CLOSE)

    def answer(self, number: int, status: RankStatus) -> None:
        """This rank's status in a round."""
        self._store.set(f"answer/{number}/{self._rank}", status.to_json())

    # Reading too.

    def wait_for_call(self, number: int) -> bool:
        """Wait until the round is called, however long that takes; False once this rank closes."""
        key = f"call/{self._rank}/{number}"
        wait_for_key(self._store, key)
        return bool(self._store.get(key).decode() == CALL)

    def coordinates(self, number: int) -> bool:
        """Whether this rank is the first to offer itself as the coordinator of a round."""
        me = str(self._rank)
        return bool(self._store.compare_set(f"coordinator/{number}", "", me).decode() == me)

    def answers(self, number: int, seconds: float, until: Callable[[], bool] = bool) -> dict[int, RankStatus]:
        """The status of each rank that answers in time. `until` may end the wait earlier; by default it does not."""
        keys = [f"answer/{number}/{rank}" for rank in self._ranks]
        self._poll(lambda: self._store.check(keys) or until(), seconds)
        return self._statuses(f"answer/{number}")

    def last_known(self) -> dict[int, RankStatus]:
        """The status that each rank published last."""
        return self._statuses("status")

    def has_arrived(self, rank: int) -> bool:
        """Whether the rank is at the end of the training."""
        return bool(self._store.check([f"arrived/{rank}"]))

    def failures(self) -> dict[int, str]:
        """The cause of each rank that is about to end; empty for a rank that lost another one."""
        if not self._store.check(["failed"]):
            return {}
        failed = sorted({int(rank) for rank in self._store.get("failed").split()})
        return dict(zip(failed, self._get([f"failure/{rank}" for rank in failed]), strict=True))

    def decide(self, number: int, decision: str) -> None:
        """End a round. The first decision is final."""
        self._store.compare_set(f"decision/{number}", "", decision)

    def decision(self, number: int, seconds: float) -> str:
        """The decision of a round, the same on all ranks. If the coordinator does not make one in time, all go on."""
        key = f"decision/{number}"
        try:
            self._store.wait([key], timedelta(seconds=seconds))
        except dist.DistStoreError:
            self.decide(number, GO_ON)
        return self._store.get(key).decode()

    def agree_on_loss(self, message: str) -> str:
        """What the first rank that lost another one says about it."""
        return self._store.compare_set("loss", "", message).decode()

    def loss_is_known(self) -> bool:
        """Whether a rank has said so."""
        return bool(self._store.check(["loss"]))

    def leave_together(self, number: int, seconds: float) -> None:
        """Wait for the ranks that answered: the first to leave breaks their connections, and rank 0 ends the store."""
        self._store.set(f"leaving/{self._rank}", "")
        answered = [rank for rank in self._ranks if self._store.check([f"answer/{number}/{rank}"])]
        self._poll(lambda: self._store.check([f"leaving/{rank}" for rank in answered]), seconds)

    def leave(self, seconds: float) -> None:
        """Stop using the store. Rank 0, whose process holds it, waits until that is true of all ranks.

        Otherwise torch prints a stack of 20 lines on each rank that waits for a call when the store ends.
        """
        self._store.set(f"left/{self._rank}", "")
        if self._rank == 0:
            self._poll(lambda: self._store.check([f"left/{rank}" for rank in self._ranks]), seconds)

    def _statuses(self, folder: str) -> dict[int, RankStatus]:
        keys = {rank: f"{folder}/{rank}" for rank in self._ranks}
        if not self._store.check(list(keys.values())):
            keys = {rank: key for rank, key in keys.items() if self._store.check([key])}
        return {rank: RankStatus.from_json(text) for rank, text in zip(keys, self._get(keys.values()), strict=True)}

    def _get(self, keys: Iterable[str]) -> list[str]:
        """The values of keys that exist, by one request."""
        return [value.decode() for value in self._store.multi_get(list(keys))]

    def _poll(self, condition: Callable[[], bool], seconds: float) -> None:
        """Until the condition holds, or for so long; time in which this process is paused does not count."""
        waited = Stopwatch(read_at=time.monotonic())
        while not condition() and waited.seconds < seconds:
            time.sleep(POLL_SECONDS)
            waited = waited.at(time.monotonic(), self._timing)
