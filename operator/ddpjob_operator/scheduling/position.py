"""How many other jobs a message names: rounded, because a message that changes with each of them is a status write each time."""


def rounded(number: int) -> str:
    """The number of other jobs: 7, more than 40, more than 300."""
    unit = 1 if number <= 10 else 10 if number <= 100 else 100
    return str(number) if unit == 1 else f"more than {(number - 1) // unit * unit}"


def jobs_before(number: int) -> str:
    """How many jobs wait before one."""
    return f"{rounded(number)} {'job' if number == 1 else 'jobs'} before it"
