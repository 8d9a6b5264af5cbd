"""Torch's compiler at work as a phase of this rank, whenever it is."""

import threading
from typing import Any

from torch._dynamo import callback  # loaded only where something is compiled

from ddpjob_ranks.watch.timeline import Phase, Timeline


class CompilerWatch:
    """From here to `close`, the timeline is in the phase COMPILE while the main thread compiles."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._before: Phase | None = None
        callback.on_compile_start(self._start)
        callback.on_compile_end(self._end)

    def close(self) -> None:
        """Watch no longer."""
        callback.callback_handler.remove_start_callback(self._start)
        callback.callback_handler.remove_end_callback(self._end)

    def _start(self, *_: Any) -> None:
        if threading.current_thread() is threading.main_thread():  # which alone moves the mark
            self._before = self._timeline.mark.phase
            self._timeline.enter(Phase.COMPILE)

    def _end(self, *_: Any) -> None:
        if self._before is not None:
            self._timeline.enter(self._before)
            self._before = None
