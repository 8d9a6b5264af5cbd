"""A trace of some steps of this rank by torch.profiler, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch.identity import attempt
from ddpjob_ranks.regular_files import make_own_folder
from ddpjob_session.observers import output_folder


class StepTrace:
    """Records some steps and writes them to a file.

    A trace grows by 0.1 to 10 MB a step before compression, and is kept in memory until it is written: so the configuration
    allows 100 steps at most.
    """

    def __init__(
        self,
        steps: range,
        path: Path,
        device: torch.device,
        *,
        say: Callable[[str], None],
        moved: Callable[[], None],
    ) -> None:
        """`say` reports the file, or why there is none; `moved` marks progress for the watchdog."""
        self._steps = steps
        self._path = path
        self._device = device
        self._say = say
        self._moved = moved
        self._profile: profile | None = None
        self._step: record_function | None = None

    def before_step(self, step: int) -> None:
        """So many steps are done, and the next one begins: start the recording, or end it. To be called before each step."""
        if step not in self._steps:
            self.close()
            return
        if self._profile is None:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
            self._profile = profile(activities=activities)
            self._profile.start()
        self._enter(record_function(f"step {step}"))

    def close(self) -> None:
        """Write what was recorded, if there is something. Further steps are not recorded."""
        if self._profile is None:
            return
        self._enter(None)
        recorded, self._profile, self._steps = self._profile, None, range(0)
        recorded.stop()
        self._moved()
        try:
            make_own_folder(self._path.parent)
            # A name that cannot be guessed: whoever else may write there could have made it a link.
            unfinished = self._path.with_name(f".{secrets.token_hex(8)}-{self._path.name}")
            recorded.export_chrome_trace(str(unfinished))
            unfinished.replace(self._path)
        except (OSError, RuntimeError) as error:  # the training continues without it
            self._say(f"profileSteps: {self._path} cannot be written: {error}")
        else:
            self._say(f"profileSteps: traces of the ranks in {self._path.parent}")
        self._moved()

    def _enter(self, step: record_function | None) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
        self._step = step
        if step is not None:
            step.__enter__()  # type: ignore[no-untyped-call]  # torch declares no types for it


def path_for(steps: Sequence[int], environ: Mapping[str, str], *, rank: int) -> Path:
    """The file of a rank's trace, in the folder of the spans or else of the checkpoints.

    Raises:
        ConfigError: the environment names neither folder.
    """
    folder = output_folder(environ)
    if folder is None:
        raise ConfigError(
            f"config: profileSteps is {list(steps)}, and there is no folder for the traces: set {contract.DDPJOB_EVENTS_DIR}"
            f" (in env) or {contract.DDPJOB_CHECKPOINT_DIR} (by checkpoint.volume)"
        )
    return folder / "profile" / f"attempt-{attempt(environ)}-rank-{rank}.json.gz"
