"""Doubling delays."""


def doubled(first: float, num_before: int, most: float) -> float:
    """The delay after a number of earlier ones: the first, then twice as long each time, up to the longest."""
    return min(first * 2.0 ** min(num_before, 30), most)
