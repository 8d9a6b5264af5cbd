"""The steps of a training, one after another, whoever drives them: a `for` loop, the callbacks of a framework, or our own loop."""

from collections.abc import Callable, Iterator
from typing import Self

from ddpjob_ranks.watch.timeline import Phase
from ddpjob_session.run import Run


class Stopped(BaseException):
    """All ranks agreed to stop. It leaves the loop and the `with` block of the session, which saves and exits.

    No subclass of Exception, so that a script's own `except Exception` does not keep it from leaving.
    """


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
        before_step: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
        first_phase: Phase = Phase.STEP,
    ) -> None:
        """`run` has begun.

        `before_step` is called between two steps, once the ranks agreed to go on, and `at_end` after the last one. A step
        begins with `first_phase`.
        """
        self.total = total
        self.is_open = False
        self._run = run
        self._before_step = before_step
        self._at_end = at_end
        self._first_phase = first_phase

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
        if self._run.stop_reached():
            raise Stopped
        self._before_step()
        self._run.timeline.enter(self._first_phase)
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
        self._run.step_done(num_samples=num_samples)

    def close(self) -> None:
        """The training ends here. A step that has begun, and that a loop has left by `break`, counts as done."""
        if self.is_open:
            self.is_open = False
            self._run.step_done(is_left=True)
        if self.done >= self.total:
            self._at_end()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        if self.is_open:
            self.end_step()
        if self.done >= self.total:
            self.close()
            raise StopIteration
        return self.begin_step()
