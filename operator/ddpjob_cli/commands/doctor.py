"""`ddpjob doctor`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from ddpjob_cli.failures import EXIT_FAILED, EXIT_SUCCEEDED
from ddpjob_cli.options import OutputOption, connect
from ddpjob_cli.output import print_data, print_screen

if TYPE_CHECKING:
    from rich.table import Table

    from ddpjob_cli.doctor import Finding

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def command(output: OutputOption = None) -> None:
    """Check whether jobs can run: API server, DDPJob type, operator, rights, GPUs, schedulers, storage, DNS.

    The exit code is 1 if there is a problem. Nothing is created, so whether images can be pulled is not checked.

    [bold]Example[/bold]

      ddpjob doctor -n team-a
    """
    from ddpjob.client.errors import client_error
    from ddpjob_cli.doctor import State, findings, gather
    from ddpjob_operator.transport.errors import ApiError
    from ddpjob_operator.transport.resources import DDPJOBS

    with connect() as client:
        try:
            facts = client.call(gather(client.asynchronous.api, client.namespace))
        except ApiError as error:
            raise client_error(error, "list", DDPJOBS, client.namespace, None) from error
    found = findings(facts)
    if output:
        print_data(
            [{**asdict(finding), "state": finding.state.value} for finding in found],
            output,
            names=[finding.subject for finding in found],
        )
    else:
        print_screen(_table(found))
    bad = any(finding.state is State.PROBLEM for finding in found)
    raise typer.Exit(EXIT_FAILED if bad else EXIT_SUCCEEDED)


def _table(found: "Sequence[Finding]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for finding in found:
        state = Text(finding.state.value, style=_STYLES[finding.state])
        table.add_row(state, Text(finding.subject), Text(finding.text, overflow="fold"))
    return table
