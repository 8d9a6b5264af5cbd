"""The steps of a training, one after another, whoever drives them: a `for` loop, the callbacks of a framework, or our own loop."""

from collections.abc import Iterator
from typing import NoReturn, Self

from ddpjob_ranks.watch.timeline import Phase
from ddpjob_session.optimizer_steps import OptimizerSteps
from ddpjob_session.run import Run


class Stopped(BaseException):
    """All ranks agreed to stop. It leaves the loop and the `with` block of the session, which saves and exits.

    No subclass of Exception, so that a script's own `except Exception` does not keep it from leaving.
    """


class Policy:
    """What is done between two steps. All ranks do the same."""

    def before_step(self) -> None:
        """Called first, before the state is saved or copied, and also before the ranks stop."""

    def save_is_due(self) -> bool:
        """Whether to save, in addition to what the ranks agree on."""
        return False

    def save(self) -> None:
        """Save, between two steps and after the last one."""


class Steps(Iterator[int]):
    """The steps that are left, from the one at which the last attempt stopped.

    As an iterator it gives their numbers, from 0: a step is done when the loop comes back for the next number. A loop of
    somebody else's calls `begin_step` and `end_step` around each step instead, and may call `close` after the last one. All
    ranks make the same calls after the same steps.

    Attributes:
        total: Number of steps of the whole training.
        is_open: Whether a step has begun and not ended.
    """

    def __init__(
        self,
        run: Run,
        total: int,
        *,
        policy: Policy | None = None,
        optimizers: OptimizerSteps | None = None,
        first_phase: Phase = Phase.STEP,
    ) -> None:
        """`run` has begun. Without a `policy` the caller saves. A step begins with `first_phase`."""
        self.total = total
        self.is_open = False
        self._run = run
        self._policy = policy or Policy()
        self._optimizers = optimizers
        self._first_phase = first_phase
        self._is_save_late = False

    @property
    def done(self) -> int:
        """Number of steps done, in all attempts."""
        return self._run.state.step

    def begin_step(self) -> int:
        """Agree with the other ranks on going on. Returns the number of the step, from 0.

        Raises:
            Stopped: all ranks agreed to stop, after the same step. Let it leave the `with` block of the session.
            RuntimeError: the step before has not ended, or the last one has.
        """
        if self.is_open or self.done >= self.total:
            wrong = "has not ended; call end_step" if self.is_open else "was the last one"
            raise RuntimeError(f"Steps.begin_step: the step before, of {self.done} and {self.total} in all, {wrong}")
        run = self._run
        stops = run.stop_reached()
        saves = self._is_save_late or run.stop.save_agreed or self._policy.save_is_due()
        copies = run.stop.copy_agreed and run.stop.gradients_kept_anywhere  # others copy without asking each other more
        if (stops or saves or copies) and self._are_gradients_kept():
            self._is_save_late = saves  # until an optimizer has made its step
        else:
            self._policy.before_step()
            if stops:
                raise Stopped
            run.copy_if_agreed()
            if saves:
                self._is_save_late = False
                self._policy.save()
        run.timeline.enter(self._first_phase)
        self.is_open = True
        return self.done

    def end_step(self, *, num_samples: int = 0) -> None:
        """The step is done; `num_samples` is the sum over all ranks, if it is known.

        Raises:
            RuntimeError: no step has begun.
        """
        if not self.is_open:
            raise RuntimeError("Steps.end_step: no step has begun; call begin_step before each step")
        self.is_open = False
        if self._optimizers is not None:
            self._optimizers.end_step()
        is_whole = self._optimizers is None or not self._optimizers.are_gradients_kept
        self._run.step_done(num_samples=num_samples, is_whole=is_whole)

    def close(self) -> None:
        """The training ends here. A step that has begun, and that a loop has left by `break`, counts as done.

        It does not count if no optimizer has made a step in it, and some has before, as where `zip` has taken its number for
        data that were at their end.
        """
        if self.is_open:
            self.is_open = False
            self._run.step_left(is_done=self._has_changed)
        if self.done >= self.total:
            self._policy.save()

    def stop_within(self) -> NoReturn:
        """All ranks agreed to stop within a step: it counts if an optimizer has made its step."""
        if self.is_open and self._has_changed:
            self.end_step()
        self.is_open = False
        raise Stopped

    @property
    def _has_changed(self) -> bool:
        return self._optimizers is None or self._optimizers.has_changed

    def _are_gradients_kept(self) -> bool:
        """On any rank: all of them have to do the same."""
        if self._optimizers is None:
            return False
        return any(self._run.gang.all_gather(self._optimizers.are_gradients_kept))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        if self.is_open:
            self.end_step()
        if self.done >= self.total:
            self.close()
            raise StopIteration
        return self.begin_step()
