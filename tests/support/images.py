"""The project's images, built without a container registry: `python -m support.images operator trainer-cpu`.

They get the names that the chart asks for when its values name no others, so that `helm install` finds them: where
only `trainer-cpu` is loaded, it has also the name of `trainer`.
"""

import argparse
import re
import sys
import time
import tomllib
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import yaml

from support import REPOSITORY
from testbed import images
from testbed.cluster import Cluster
from testbed.errors import TestbedError

TARGETS = ("operator", "trainer", "trainer-cpu")


def _copied(dockerfile: str) -> dict[str, tuple[str, ...]]:
    """What each stage of a Dockerfile copies from the project, by itself or from another stage."""
    text = dockerfile.replace("\\\n", " ")
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    stages: dict[str, tuple[str, ...]] = {}
    for name, commands in re.findall(r"^FROM \S+ AS (\S+)(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL):
        sources: list[str] = []
        for line in re.findall(r"^COPY (.+)", commands, re.MULTILINE):
            *words, _ = line.split()
            if words[0].startswith("--from="):
                sources += stages[words[0].removeprefix("--from=")]
            else:
                sources += (re.sub(r"\$\{(\w+)\}", lambda name: arguments[name[1]], word) for word in words)
        stages[name] = tuple(sources)
    return stages


#: What the Dockerfile copies into each target: the builder gets nothing else.
SOURCES = {
    target: sources for target, sources in _copied((REPOSITORY / "Dockerfile").read_text()).items() if target in TARGETS
}


def recipe(target: str, project: Path = REPOSITORY) -> images.Recipe:
    """What the image of a target of the Dockerfile is made of; the chart's appVersion is the project's version."""
    version = tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"]
    values = yaml.safe_load((project / "charts/ddpjob-operator/values.yaml").read_text())
    name = f"{values['imagePrefix']}/{target}:{version}"
    return images.Recipe(target=target, name=name, project=project, sources=SOURCES[target])


def build(target: str) -> images.Image:
    """The image of a target, built where the cache does not hold it."""
    return images.build(recipe(target))


def names(target: str, loaded: Collection[str]) -> list[str]:
    """The names under which nodes get the image of a target.

    `trainer-cpu` is also loaded as `trainer`, the name that the chart uses, unless a `trainer` is loaded itself.
    """
    stands_for_trainer = target == "trainer-cpu" and "trainer" not in loaded
    return [recipe(name).name for name in (target, *(["trainer"] if stands_for_trainer else []))]


def main() -> int:
    """Build images and print name, size and seconds; the exit code is 1 where that failed."""
    parser = argparse.ArgumentParser(prog="python -m support.images", description="Build the project's images.")
    parser.add_argument("target", nargs="+", choices=TARGETS)
    parser.add_argument("--load", metavar="CLUSTER", help="put them into the nodes of this running cluster as well")
    arguments = parser.parse_args()
    try:
        for target in arguments.target:
            began = time.monotonic()
            image = build(target)
            named = names(target, arguments.target)
            if arguments.load:
                for name in named:
                    images.load(replace(image, name=name), Cluster.attach(arguments.load))
            size = sum(image.blobs.values()) / 1e6
            print(f"{' and '.join(named)}  {size:.0f} MB  {time.monotonic() - began:.1f} s", flush=True)
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
