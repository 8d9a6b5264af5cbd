"""On CPUs: a rank that ends writes the whole state into memory of its node, so that no step is lost.

A rank writes its state before its process ends, whether it failed itself or another rank did. The state is whole except while a step of the
optimizer changes it: then the rank waits for the end of that step. All ranks take part in each step, so the states of two ranks
differ by one step at most. Parts that are neither modules nor optimizers, such as samplers, may change at any time: of
these the rank keeps a copy from the end of the last step.

A process that is killed writes nothing any more. So each rank writes in each step what no other rank knows, before it sends its
gradients, without which no other rank can complete the step, and again at the end of the step if it has changed since. The last
two steps are kept. Where it changes after the forward pass, as the copies of statistics in an AveragedModel do, a rank that is
killed before the end of a step that others have completed takes it along: all ranks then continue from the state of the step before,
if a rank has kept that, or from the newest checkpoint.

Not on GPUs: kernels that still wait in the queue of a GPU may change its state at any time after a failure.
"""

import copy
import fcntl
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpjob_ranks import slots
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.generation import Generation
from ddpjob_session.checkpoints.snapshot import tensors_in
from ddpjob_session.memory.state_memory import (
    STATE_SLOTS,
    StateMemory,
    check_size,
    oldest_slot,
    own_content,
)
from ddpjob_session.state import State

#: The types of device whose state is whole when a rank ends.
DEVICES: Final = ("cpu",)
#: Longest wait of a rank that ends for the optimizer's step.
STEP_SECONDS: Final = 5.0


class MemoryAtExit(StateMemory):
    """Memory that a rank writes before it ends, by `save`."""

    def __init__(self, generation: Generation, state: State, gang: Gang) -> None:
        super().__init__(generation, state, gang)
        self._versions = 0
        self._step = slots.NO_STEP  # of the state while it is whole, which it is once it is loaded
        self._others: dict[str, Any] = {}
        """The state of the parts that are neither modules nor optimizers, after that step."""
        self._whole = threading.Lock()
        self._in_optimizer = False
        self._is_left_out = False
        self._written: tuple[int, bytes] | None = None
        self._changes_late: bool | None = None
        """Whether what only this rank knows has changed in some step after it was first written; None before the first step."""

    def hold(self, replicas: Iterable[nn.Module], *, restored: bool) -> None:
        """See StateMemory."""
        self._has_own = self._needs_own  # found once, since it goes through all modules
        self._keep_others()
        self._step, self._versions = self._state.step, self._count_changes()
        # A thread that saves because the generation ends never releases the lock: then this waits for the end.
        with self._whole:
            slots.empty(self._node)
            self._forget(restored=restored, node=False)
        # Of every optimizer, since one without state, such as plain SGD, may be no part.
        register_optimizer_step_pre_hook(lambda *_: self._begin_change())
        for replica in replicas:  # one rank alone needs none, and a hook would be compiled with its model
            if isinstance(replica, DistributedDataParallel):
                replica.register_forward_hook(lambda module, *_: self.forward_done(module))

    def forward_done(self, replica: nn.Module) -> None:
        """Keep what only this rank knows, before it sends the gradients of a step."""
        if replica.training and self._has_own:
            self._keep_own(self._state.step + 1, self._own_content(), is_final=self._changes_late is False)

    def leave_out(self, why: str) -> None:
        """See StateMemory. From here on nothing is kept, since a rank that ends cannot wait for such a step."""
        if not self._is_left_out:
            self._is_left_out, self._step, self._has_own = True, slots.NO_STEP, False
            self._report_lack(RuntimeError(f"{why}; a restart in place continues from the newest checkpoint"))

    def step_done(self) -> None:
        """See StateMemory."""
        if self._is_left_out:
            return
        if self._has_own:
            self._keep_end_of_step()
        self._begin_change()  # a step may have called no optimizer, and what follows belongs together, too
        self._keep_others()
        self._step, self._versions = self._state.step, self._count_changes()
        self._in_optimizer = False
        self._whole.release()

    def save(self) -> None:
        """Write the state, from whichever thread, once it is whole. The process ends after that."""
        if self._step == slots.NO_STEP:
            return
        try:
            self._wait_for_step()
            fcntl.lockf(self._node, fcntl.LOCK_EX)  # other ranks of the node write, too
            if max(slots.step_of(self._node, slot) for slot in STATE_SLOTS) < self._step:
                content = {**self._state.content(), **self._others, "step": self._step}
                check_size(content)
                slots.write(self._node, self._step, partial(torch.save, content), slot=oldest_slot(self._node))
            fcntl.lockf(self._node, fcntl.LOCK_UN)
        except Exception as error:  # noqa: BLE001 - the process ends anyway, and another rank may have kept the state
            self._report_lack(error)

    def _count_changes(self) -> int:
        """Of all weights, as autograd counts them: not those by `.data`."""
        modules = (part for part in self._state.parts.values() if isinstance(part, nn.Module))
        return sum(each._version for module in modules for each in module.parameters() if not each.is_inference())

    def _wait_for_step(self) -> None:
        in_step = self._in_optimizer and threading.current_thread() is threading.main_thread()
        if in_step or not self._whole.acquire(timeout=STEP_SECONDS):
            raise TimeoutError(f"step {self._step + 1} has changed it and has not ended")
        if self._versions != self._count_changes():
            raise RuntimeError(
                "weights were changed outside of an optimizer's step, as by an average put in their place"
            )

    def _keep_others(self) -> None:
        found = {
            name: part.state_dict()
            for name, part in self._state.parts.items()
            if not isinstance(part, nn.Module | torch.optim.Optimizer)
        }
        if not found and not self._others:
            return
        # Tensors may be large, and are not copied.
        self._others = copy.deepcopy(found, {id(tensor): tensor for tensor in tensors_in(found)})

    def _begin_change(self) -> None:
        if not self._in_optimizer:
            self._whole.acquire()
            self._in_optimizer = True

    def _keep_end_of_step(self) -> None:
        current = (self._state.step, self._own_content())
        has_changed = self._written not in (None, current)
        is_known = self._written == current and self._changes_late is False
        self._changes_late = bool(self._changes_late) or has_changed
        if not is_known:
            self._keep_own(*current, is_final=True)
        self._written = None

    def _own_content(self) -> bytes:
        return own_content(self._drawn(), self._own_buffers())

    def _keep_own(self, step: int, content: bytes, *, is_final: bool) -> None:
        self._written = (step, content)
        self._write_own(step, content, step % 2, is_final=is_final, changes_late=self._changes_late is not False)

    def _restored(self, *, is_newest: bool, changes_late: bool | None) -> None:
        self.has_last_step = is_newest
        self._changes_late = changes_late
        self._step, self._versions = self._state.step, self._count_changes()
