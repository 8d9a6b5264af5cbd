"""Tables of the failure classes and of the trainer's exit codes, made from the definitions that the code uses."""

from ddpjob_operator.core.failure.classes import CLASSES
from ddpjob_ranks import contract


def classes() -> str:
    """All failure classes as a Markdown table."""
    rows = ["| class (reason) | recognised by | what follows | the user reads |", "| --- | --- | --- | --- |"]
    rows += (f"| {row.reason} | {row.recognised} | {row.kind.value} | `{row.example}` |" for row in CLASSES)
    return "\n".join(rows)


def exit_codes() -> str:
    """The exit codes of the built-in trainer as a Markdown table."""
    rows = ["| exit code | meaning |", "| --- | --- |"]
    rows += (f"| {code} | {meaning} |" for code, meaning in sorted(contract.EXIT_CODES.items()))
    return "\n".join(rows)
