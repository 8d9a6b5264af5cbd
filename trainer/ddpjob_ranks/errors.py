"""What ends a rank by no fault of the program. Importable without torch."""


class ConfigError(ValueError):
    """What the user gave (keys, variables or data) is wrong. The text names it; another attempt would fail in the same way."""


class PeersMissingError(RuntimeError):
    """Other ranks did not appear in time."""


class ShortageError(RuntimeError):
    """A volume is full, or the like: an administrator can fix it while the job waits, and a later attempt can succeed."""
