"""The patterns of a .gitignore (gitignore(5)): which entries of a directory they exclude.

Each entry of a directory is checked, not each path of a file, because nothing below an excluded directory can be included
again. Libraries that match
whole paths, such as pathspec, take `!net/` as an inclusion of everything in net, which git does not.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of a file of patterns."""

    pattern: re.Pattern[str]
    """Matches a whole path, relative to the directory of the file."""
    excludes: bool
    only_folders: bool

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """Whether the rule is about this entry itself."""
        return (is_folder or not self.only_folders) and self.pattern.fullmatch(path) is not None


def parse(lines: Iterable[str]) -> Sequence[Rule]:
    """The rules of a file; a line that is not valid matches nothing, as for git."""
    return [rule for line in lines if (rule := _rule(line)) is not None]


def excludes(rules: Sequence[Rule], path: str, *, is_folder: bool) -> bool | None:
    """Whether the last rule that matches excludes the path; None if none matches."""
    return next((rule.excludes for rule in reversed(rules) if rule.matches(path, is_folder=is_folder)), None)


def _rule(line: str) -> Rule | None:
    text = re.sub(r"(?<!\\) +$", "", line.rstrip("\r\n"))
    if not text or text.startswith("#"):
        return None
    excludes = not text.startswith("!")
    text = text if excludes else text[1:]
    only_folders = text.endswith("/")
    text = text.removesuffix("/")
    if "/" not in text:
        text = f"**/{text}"
    try:
        return Rule(pattern=re.compile(_expression(text)), excludes=excludes, only_folders=only_folders)
    except re.error:
        return None


_TOKEN = re.compile(
    r"(?P<leading>^\*\*/)|(?P<middle>/\*\*/)|(?P<trailing>/\*\*$)|(?P<stars>\*+)|(?P<one>\?)"
    r"|\[(?P<negated>[!^]?)(?P<members>\]?[^]]*)\]|\\(?P<escaped>.)|(?P<plain>.)",
    re.DOTALL,
)


def _expression(text: str) -> str:
    """The regular expression of a pattern, which is relative to the directory of its file."""
    return "".join(_translated(found) for found in _TOKEN.finditer(text.removeprefix("/")))


def _translated(token: re.Match[str]) -> str:
    kinds = {"leading": "(?:.*/)?", "middle": "/(?:.*/)?", "trailing": "/.+", "stars": "[^/]*", "one": "[^/]"}
    if kind := next((kind for kind in kinds if token[kind] is not None), None):
        return kinds[kind]
    if token["members"] is not None:
        members = re.sub(r"[\[&~|]|^\]", lambda found: f"\\{found.group()}", token["members"])
        return f"(?!/)[{'^' if token['negated'] else ''}{members}]"
    return re.escape(token["escaped"] if token["escaped"] is not None else token["plain"])
