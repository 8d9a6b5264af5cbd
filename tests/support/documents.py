"""Runs the command blocks of a document as a reader would: `python -m support.documents README.md --in shell`.

Each fenced block names its language, `sh` or `console` for commands and `text` for output. A comment in the line before a
block of commands says where it runs:

    <!-- run: shell -->           in a checkout
    <!-- run: docker -->          where `docker` builds and pushes images
    <!-- run: api-server -->      where KUBECONFIG names a control plane
    <!-- run: cluster -->         where KUBECONFIG names a cluster with nodes and both images, PREFIX the images' prefix
    <!-- run: skip: reason -->    nowhere

The blocks of one document and one environment run in one shell, in order, in the root of the checkout, so a later block
sees the variables of an earlier one. The first command that fails ends the run. In a `console` block only the lines after
`$ ` are commands; the others show what they print.
"""

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support import REPOSITORY
from testbed import tools

ENVIRONMENTS = ("shell", "docker", "api-server", "cluster")
TIMEOUT_SECONDS = 600

_COMMANDS = ("sh", "console")
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(rf"<!-- run: (?:({'|'.join(ENVIRONMENTS)})|skip: \S.*) -->\n\Z")


class DocumentError(Exception):
    """A block has no mark, or its commands failed; the text names the document and the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One command block.

    Attributes:
        line: number of its first command in the document.
        environment: where it runs; empty where it is skipped.
        commands: a shell script.
    """

    line: int
    environment: str
    commands: str


def blocks(document: Path) -> list[Block]:
    """The command blocks of a document, in order.

    Raises:
        DocumentError: a block has no language, or a command block no mark.
    """
    text = document.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        language, content = fence.groups()
        line = text.count("\n", 0, fence.start()) + 2
        if not language:
            raise DocumentError(f"{document}:{line}: the block has no language: sh for commands, text for output")
        if language not in _COMMANDS:
            continue
        mark = _MARK.search(text, 0, fence.start())
        if mark is None:
            raise DocumentError(f"{document}:{line}: the block has no mark such as <!-- run: shell --> before it")
        commands = content if language == "sh" else "".join(re.findall(r"^\$ (.*\n)", content, re.MULTILINE))
        found.append(Block(line=line, environment=mark[1] or "", commands=commands))
    return found


def run(document: Path, environment: str, variables: Mapping[str, str] | None = None) -> str:
    """Run the blocks that belong to this environment; print their output as it comes, and return it.

    Args:
        document: a Markdown file.
        environment: one of ENVIRONMENTS.
        variables: environment variables of the shell, in addition to those of this process.

    Raises:
        DocumentError: a command failed, or the blocks took longer than TIMEOUT_SECONDS.
    """
    script = ["set -euo pipefail"]
    for block in blocks(document):
        if block.environment == environment:
            place = shlex.quote(f"{document}:{block.line}")
            script += [
                f"trap 'echo the block at {place} failed >&2' EXIT",
                "set -x",
                block.commands,
                "{ set +x; } 2>&-",
            ]
    script.append("trap - EXIT")
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=REPOSITORY,
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)

    deadline = threading.Timer(TIMEOUT_SECONDS, end)
    deadline.start()
    output = ""
    assert shell.stdout is not None, "a pipe"
    with contextlib.ExitStack() as stack:
        stack.callback(end)  # also ends what a block left in the background
        stack.callback(deadline.cancel)
        for line in shell.stdout:
            print(line, end="", flush=True)
            output += line
        code = shell.wait()
    if code == -signal.SIGKILL:
        raise DocumentError(f"{document}: the blocks for {environment} took longer than {TIMEOUT_SECONDS} s:\n{output}")
    if code != 0:
        raise DocumentError(f"{document}: exit code {code} of the blocks for {environment}:\n{output}")
    return output


def cluster_variables(kubeconfig: Path) -> dict[str, str]:
    """Variables with which commands reach a cluster by the test bed's kubectl and helm."""
    programs = [str(tools.path(program).parent) for program in ("kubectl", "helm")]
    return {"KUBECONFIG": str(kubeconfig), "PATH": os.pathsep.join([*programs, os.environ["PATH"]])}


def main() -> int:
    """Run a document's blocks; the exit code is 1 if a command failed."""
    parser = argparse.ArgumentParser(
        prog="python -m support.documents", description="Run the command blocks of a document."
    )
    parser.add_argument("document", type=Path)
    parser.add_argument("--in", dest="environment", choices=ENVIRONMENTS, required=True)
    arguments = parser.parse_args()
    try:
        run(arguments.document, arguments.environment)
    except DocumentError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
