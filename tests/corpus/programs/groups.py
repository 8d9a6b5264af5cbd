"""Exception groups: of exceptions that were raised, of others, and nested ones."""

import asyncio
import sys


async def fail(error: Exception) -> None:
    """Raise it."""
    raise error


async def main() -> None:
    """Run two tasks of which both fail."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail(ValueError("shard 3 is truncated")))
        tasks.create_task(fail(KeyError("label")))


match sys.argv[1]:
    case "tasks":
        asyncio.run(main())
    case "bare":
        raise ExceptionGroup("two things", [ValueError("shard 3 is truncated"), TypeError("b")])
    case "nested":
        inner = ExceptionGroup("inner", [ValueError("shard 3 is truncated")])
        raise ExceptionGroup("outer", [inner, TypeError("b")])
