"""The errors that end a rank although its program is right. Importable without torch."""


class ConfigError(ValueError):
    """A key, variable or data of the user is wrong. The text names it; another attempt would fail in the same way."""


class PeersMissingError(RuntimeError):
    """Other ranks did not start in time."""


class ShortageError(RuntimeError):
    """A volume is full, or the like: an administrator can fix it while the job waits, and a later attempt can succeed."""


class ReplacedError(RuntimeError):
    """Another pod has replaced the one of this rank, which the cluster had given up."""

    def __init__(self, rank: int | str) -> None:
        super().__init__(f"rank {rank} runs in another pod now, which has replaced this one")


class ForeignMessageError(RuntimeError):
    """What came in place of another rank's message holds more than data, and was not read."""

    def __init__(self, rank: int) -> None:
        super().__init__(
            f"rank {rank} has sent a message that is not one of this program, and nothing of it was run: another release may"
            " run there, or a process that does not belong to the training has connected; see docs/explanation/security.md"
        )
