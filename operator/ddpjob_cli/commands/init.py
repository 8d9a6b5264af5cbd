"""`ddpjob init`."""

import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer


def command(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="File to write; - for standard output")] = Path(
        "ddpjob.yaml"
    ),
    name: Annotated[str | None, typer.Option(help="Name of the job", show_default="that of this directory")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes", show_default=False)] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs on each node; 0 for CPUs", show_default=False)] = None,
    script: Annotated[str | None, typer.Option(help="Your own script in the image", show_default=False)] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe of the built-in trainer", show_default=False)] = None,
    image: Annotated[str | None, typer.Option(help="Image with the script", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file")] = False,
) -> None:
    """Write a job file with comments. On a terminal, the command asks for the options that you leave out.

    [bold]Examples[/bold]

      ddpjob init --nodes 2 --gpus 4 --script train.py --image registry.example.com/ml/train:1

      ddpjob init --gpus 0 --recipe digits
    """
    from ddpjob_cli.output import note
    from ddpjob_cli.starter import PLACEHOLDER, Answers, starter_file
    from ddpjob_operator.core.job_names import valid_name

    if script and recipe:
        raise ValueError("--script and --recipe exclude each other: give one of them")
    asks = sys.stdin.isatty()
    if asks and not (script or recipe):
        script = typer.prompt(
            "Path of your script in the image (leave empty to use the built-in trainer)",
            default="",
            show_default=False,
            err=True,
        )
        if not script:
            recipe = typer.prompt("Recipe", default="digits", err=True)
    if asks and script and not image:
        image = typer.prompt("Image that contains it", default=PLACEHOLDER, err=True)
    if asks and nodes is None:
        nodes = typer.prompt("Nodes", default=2, type=int, err=True)
    if asks and gpus is None:
        gpus = typer.prompt("GPUs on each node (0: CPUs)", default=0 if recipe == "digits" else 1, type=int, err=True)
    answers = Answers(
        name=name or valid_name(Path.cwd().name),
        nodes=2 if nodes is None else nodes,
        gpus_per_node=gpus or 0,
        script=script or "",
        recipe=recipe or ("" if script else "digits"),
        image=image or "",
    )
    _check(starter_file(answers))
    if str(file) == "-":
        print(starter_file(answers), end="")
        return
    if (file.exists() or file.is_symlink()) and not force:
        raise ValueError(f"{file} exists; give another name, or --force to overwrite it")
    file.write_text(starter_file(answers, shlex.quote(str(file))), encoding="utf-8")
    if script and not script.startswith("/") and not Path(script).exists():
        note(f"{script} does not exist here; the image must have it, and a local run needs it in the current directory")
    note(f"wrote {file}; next: ddpjob validate {file}, then ddpjob run {file} --local or ddpjob run {file}")


def _check(text: str) -> None:
    """Refuse answers of which no valid job can be made, before anything is written."""
    from ddpjob_cli.manifest import ManifestError, read_manifest

    with TemporaryDirectory() as folder:
        draft = Path(folder) / "ddpjob.yaml"
        draft.write_text(text, encoding="utf-8")
        try:
            read_manifest(draft)
        except ManifestError as error:
            raise ValueError(str(error).replace(f"{draft}: ", "init: ")) from None
