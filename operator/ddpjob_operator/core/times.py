"""Times as the API writes them (RFC 3339, UTC, whole seconds) and as decisions use them (seconds since the epoch)."""

from collections.abc import Iterable
from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """The API's form of a time, cut to whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def epoch_seconds(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time.

    Raises:
        ValueError: if the text is no such time.
    """
    return datetime.fromisoformat(text).timestamp()


def duration(seconds: float) -> str:
    """A span for people: `45s`, `3m20s`, `1h5m`, `2d3h`; always its two largest units."""
    whole = max(0, round(seconds))
    for unit, size, smaller, smaller_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller_size}{smaller}"
    return f"{whole}s"


def soonest(times: Iterable[float | None], now: float) -> float | None:
    """The first of these times that is still to come; None if none is. What is not known is no time."""
    return min((time for time in times if time is not None and time > now), default=None)
