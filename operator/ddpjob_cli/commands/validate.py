"""`ddpjob validate`."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files", show_default=False)],
) -> None:
    """Check files by the rules of the API, types and CEL rules included, without a cluster.

    Each file holds one DDPJob. What admission adds on a cluster (quota, pod security, policies) is not checked: for that,
    use `ddpjob run FILE --dry-run=server`.

    [bold]Example[/bold]

      ddpjob validate manifests/examples/*.yaml
    """
    from ddpjob_cli.manifest import ManifestError, read_manifest
    from ddpjob_cli.output import note
    from ddpjob_operator.core.separate_trainings import warning

    mistakes = []
    for file in files:
        try:
            manifest = read_manifest(file)
        except ManifestError as error:
            mistakes.append(str(error))
            continue
        if alone := warning(manifest.spec):
            note(f"{file}: {alone}")
        later = " (recipe and settings are checked when the job starts)" if manifest.spec.trainer else ""
        print(f"{file}: DDPJob {manifest.namespace}/{manifest.name} is valid{later}")
    if mistakes:
        raise ManifestError("\n".join(mistakes))
