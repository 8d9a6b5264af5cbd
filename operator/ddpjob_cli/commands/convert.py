"""`ddpjob convert`."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="YAML file with one PyTorchJob or TrainJob; - for standard input", show_default=False
        ),
    ],
) -> None:
    """Convert a Kubeflow PyTorchJob (v1) or TrainJob (v2) into a DDPJob, which is printed as YAML.

    What has no equivalent is named in comments above it. A TrainJob needs the runtime that it refers to in the same file.

    [bold]Examples[/bold]

      ddpjob convert pytorchjob.yaml > ddpjob.yaml && ddpjob validate ddpjob.yaml

      kubectl get trainjob fine-tune -o yaml | ddpjob convert -
    """
    from ddpjob_cli.kubeflow import ConversionError, convert
    from ddpjob_cli.yaml_files import read_objects
    from ddpjob_operator.core.untrusted import visible

    bodies = [body for body in read_objects(file) if isinstance(body, dict)]
    try:
        print(convert(bodies), end="")
    except ConversionError as error:
        raise ValueError(visible(f"{file}: {error}")) from None
