"""A gang whose pods are processes of this machine: what the operator gives to them, and to those that replace lost ones."""

from contextlib import ExitStack
from pathlib import Path

from ddpjob_ranks import contract
from support.training_runs import TRAINER, Run, ranks_by_hand, started

JOB = {contract.DDPJOB_UID: "u1", contract.DDPJOB_ATTEMPT: "1"}
SUPERVISED = JOB | {contract.DDPJOB_IN_PLACE_RESTARTS: "20", contract.DDPJOB_REPLACEMENT_SECONDS: "200"}


class Gang:
    """Pods of one process each, which end with the stack. All get the keys of the configuration, which scripts ignore."""

    def __init__(self, folder: Path, num_pods: int, stack: ExitStack, *keys: str, is_forked: bool = True) -> None:
        self._folder, self._stack, self._keys, self._is_forked = folder, stack, keys, is_forked
        self._variables = ranks_by_hand(num_pods)
        self._replaced: dict[int, int] = {}

    def pod(self, rank: int, replacement: int = 0, command: tuple[str, ...] = TRAINER, **more: str) -> Run:
        """The pod of this rank, where `replacement` is the number of times that it was replaced. `more` are variables."""
        variables = self._variables[rank] | SUPERVISED | {"OPENED": str(self._folder)} | more
        if replacement:
            variables |= self.replaced(rank, replacement)
        folder = self._folder / f"{rank}-{replacement}"
        run = started(folder, *self._keys, ranks=0, command=command, environ=variables, is_forked=self._is_forked)
        return self._stack.enter_context(run)

    def replaced(self, rank: int, replacement: int) -> dict[str, str]:
        """The variables of a pod that replaces that of this rank."""
        self._replaced[rank] = replacement
        replaced = (f"{node_rank}:{number}" for node_rank, number in self._replaced.items())
        return {contract.DDPJOB_REPLACEMENTS: ",".join(replaced)}
