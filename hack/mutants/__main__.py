"""Runs mutants: each is one changed expression of the product, and a test that runs the changed line must fail.

    python -m mutants run hack/mutants/core.jsonl --share 0.05
    python -m mutants draw --seed 7 --number 60 trainer/ddpjob_ranks operator/ddpjob_cli > more.jsonl

`run` prints what became of each mutant of the lists and exits with 1 if one survives; `accepted` in a row of a list says
why no unit test notices that mutant. `draw` lists mutants of lines that unit tests run, chosen by the seed.
"""

import argparse
import hashlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mutants.copied_tree import CopiedTree
from mutants.mutations import Mutant, as_row, mutants_of, read_list

#: Where the unit tests of a package are. Tests elsewhere take too long to run once for each mutant.
TESTS: Mapping[str, Sequence[str]] = {
    "operator/ddpjob_operator/core": ["tests/unit/core", "tests/unit/scheduling"],
    "trainer/ddpjob_ranks": ["tests/unit/ranks", "tests/unit/trainer"],
    "trainer/ddpjob_session": ["tests/unit/trainer", "tests/unit/ranks"],
    "operator/ddpjob_cli": ["tests/unit/cli"],
}


def main() -> None:
    """Run or draw mutants, as the arguments say."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = CopiedTree(Path(folder))
        if arguments.command == "draw":
            for mutant in drawn(tree, arguments.packages, number=arguments.number, seed=arguments.seed):
                print(as_row(mutant))
        else:
            mutants = [mutant for path in arguments.lists for mutant in read_list(path) if not mutant.accepted]
            mutants = random.Random(arguments.seed).sample(mutants, max(1, round(len(mutants) * arguments.share)))  # noqa: S311
            outcomes = run(tree, mutants)
            print(f"seed {arguments.seed}: " + ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items()))
            sys.exit(outcomes["survived"] > 0)


def drawn(tree: CopiedTree, packages: Collection[str], *, number: int, seed: int) -> list[Mutant]:
    """Mutants of lines of these packages that tests run."""
    covered = tree.measure(packages, _folders(packages))
    mutants = [
        mutant
        for file, tests in covered.items()
        for mutant, lines in mutants_of(file, tree.read(file))
        if any(line in tests for line in lines)
    ]

    # A mutant's place depends on itself and the seed only, so that a line covered by chance changes no other choice.
    def place(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {as_row(mutant)}".encode()).digest()

    return sorted(sorted(set(mutants), key=place)[:number], key=lambda mutant: mutant.file)


def run(tree: CopiedTree, mutants: Collection[Mutant]) -> Counter[str]:
    """Run the tests of each mutant, print a table, and count the outcomes."""
    packages = {_package(mutant) for mutant in mutants}
    covered = tree.measure(packages, _folders(packages))
    outcomes: Counter[str] = Counter()
    for mutant in mutants:
        began = time.monotonic()
        original = tree.read(mutant.file)
        lines = mutant.lines(original)
        tests: Collection[str] = {test for line in lines for test in covered.get(mutant.file, {}).get(line, ())}
        tests = tests or _folders([_package(mutant)])  # lines of a module run when the first test imports it
        outcome = _outcome(tree, mutant, original, tests)
        outcomes[outcome] += 1
        place = f"{mutant.file}:{lines.start}"
        print(f"{outcome:9} {time.monotonic() - began:4.0f} s {len(tests):4} tests  {place}", flush=True)
        if outcome not in ("killed", "timed out"):
            print(f"  - {mutant.old}\n  + {mutant.new}", flush=True)
    return outcomes


def _outcome(tree: CopiedTree, mutant: Mutant, original: str, tests: Collection[str]) -> str:
    changed = mutant.applied(original)
    if changed is None:
        return "gone"  # the code has changed since: the row needs another mutant
    tree.write(mutant.file, changed)
    try:
        return tree.outcome_of(tests)
    finally:
        tree.write(mutant.file, original)


def _package(mutant: Mutant) -> str:
    return next(package for package in TESTS if mutant.file.startswith(f"{package}/"))


def _folders(packages: Collection[str]) -> list[str]:
    return sorted({folder for package in packages for folder in TESTS[package]})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("lists", nargs="+", type=Path)
    running.add_argument("--share", type=float, default=1.0, help="run a random part of the mutants")
    drawing = commands.add_parser("draw")
    drawing.add_argument("packages", nargs="+", choices=list(TESTS))
    drawing.add_argument("--number", type=int, default=60)
    for command in (running, drawing):
        command.add_argument("--seed", type=int, default=random.randrange(2**16))  # noqa: S311
    return parser.parse_args()


if __name__ == "__main__":
    main()
