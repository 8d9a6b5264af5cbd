"""Wrong arguments, as libraries for command lines and configurations say it; argv[1] names the library."""

import sys

library = sys.argv.pop(1)


def train(rate: float) -> None:
    """Train."""


match library:
    case "click":
        import click

        click.command()(click.option("--rate", type=float, required=True)(train))(["--rate", "fast"])
    case "typer":
        import typer

        typer.run(train)
    case "absl":
        from absl import app

        sys.argv.append("--rate=3")
        app.run(lambda _: None)
    case "fire":
        import fire

        sys.argv += ["1", "--speed", "3"]
        fire.Fire(train)
    case "hydra":
        import hydra

        sys.argv.append("rate=3")
        hydra.main(version_base=None, config_path=None)(lambda _: None)()
