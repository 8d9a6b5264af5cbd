"""The HTML page of `ddpjob report`: one file without scripts and without requests to anywhere. Pure.

Everything on it may come from programs and from other people, so every text is escaped, and values of environment
variables are left out.
"""

import copy
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import yaml

from ddpjob_cli.curves import Curves, Point, title_of
from ddpjob_cli.local_runs import ANNOTATION
from ddpjob_cli.rendering import (
    NOTHING,
    current_attempt_has_failed,
    facts,
    local_run,
    message_of,
    metrics,
    number,
    outcome,
    restarts_so_far,
)
from ddpjob_operator.core.times import duration
from ddpjob_operator.core.untrusted import visible

if TYPE_CHECKING:
    from ddpjob.client import Job, JobEvent, Pod
    from ddpjob_cli.explanation import Section

REDACTED: Final = "(left out)"
_WORD = r"(?:token(?!iz|s)|secret|pass(?:word|wd|phrase)|credential|auth(?!or)|cookie|bearer|dsn|(?<![a-z])pat(?![a-z])|sas(?![a-z])|key(?![a-z]))"
_SECRET = re.compile(_WORD, re.IGNORECASE)
#: In a text: NAME=value, --name value, "name": "value", with a name that contains such a word; and user and password of an address.
#: A name is looked at once, from its beginning, so that the time is in proportion to the length of the text.
_NAME = rf"(?<![-\w.])(?=[-\w.]*{_WORD})[-\w.]++"
_ASSIGNED = re.compile(
    rf"""(?i)({_NAME}["']?\s*+[=:]\s*+|(?<!\S)(?=-){_NAME}\s++|(?<!\S)-p\s++)("[^"]*"|'[^']*'|[^\s"',;]+)"""
)
_USER = re.compile(r"(?<=://)[^/\s@]+(?=@)")
#: Annotations that belong to the job. Those of other programs may hold the whole manifest.
_OWN_ANNOTATIONS = ("ddpjob.dev/", "kueue.x-k8s.io/")
#: Fields that name no secret.
_REFERENCES = ("key", "topologyKey", "secretName")
#: Fields with options of drivers, which have names of their own for secrets.
_OPTIONS = ("volumeAttributes", "mountOptions", "options")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 220, 76, 30
_TIME_COLOURS = (
    ("training", "training_seconds", "var(--good)"),
    ("starting", "starting_seconds", "var(--start)"),
    ("queued", "queued_seconds", "var(--wait)"),
    ("lost", "lost_seconds", "var(--bad)"),
)

_STYLE = """
:root { color-scheme: light dark; --fg: #0f172a; --dim: #64748b; --bg: #ffffff; --card: #f8fafc; --line: #e2e8f0;
  --good: #16a34a; --bad: #dc2626; --wait: #eab308; --start: #3b82f6; }
@media (prefers-color-scheme: dark) { :root { --fg: #e2e8f0; --dim: #94a3b8; --bg: #0f172a; --card: #1e293b;
  --line: #334155; --good: #22c55e; --bad: #f87171; --wait: #facc15; --start: #60a5fa; } }
@media print { :root { color-scheme: light; --fg: #000; --dim: #444; --bg: #fff; --card: #fff; --line: #bbb; }
  section { break-inside: avoid; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--bg); color: var(--fg);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .6rem; }
.outcome { border-left: .4rem solid var(--state); padding: .4rem 0 .4rem .9rem; margin: 1rem 0; overflow-wrap: anywhere; }
.dim { color: var(--dim); white-space: pre-line; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
th, td:not(:last-child) { white-space: nowrap; }
td:last-child { min-width: 14rem; overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .4rem; padding: .8rem; font-size: .82rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.bar { display: flex; height: 1.4rem; border-radius: .4rem; overflow: hidden; background: var(--line); }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin: 0 .3rem 0 0; }
.legend span { margin-right: 1.2rem; white-space: nowrap; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--dim); } svg .axis { stroke: var(--line); } svg .curve { stroke: var(--start); fill: none; stroke-width: 2; }
svg .restart { stroke: var(--bad); stroke-dasharray: 3 4; }
@media screen and (max-width: 36rem) { svg { font-size: 18px; } thead { display: none; }
  tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--line); } tr td:empty { display: none; }
  td:not(:last-child), td:last-child { display: grid; grid-template-columns: 6rem 1fr; min-width: 0; padding: 0;
    border: 0; white-space: normal; overflow-wrap: anywhere; } td::before { content: attr(data-title); color: var(--dim); } }
@media print { table { font-size: .75rem; } th, td { padding-right: .5rem; }
  th, td:not(:last-child) { white-space: normal; } td { overflow-wrap: break-word; } td:last-child { min-width: 7rem; } }
"""


def page(
    job: "Job",
    pods: "Sequence[Pod]",
    events: "Sequence[JobEvent]",
    curves: Curves,
    explanation: "Sequence[Section]",
    *,
    versions: Mapping[str, str],
    created: str,
) -> str:
    """The whole page.

    Args:
        job: The job.
        pods: Pods of all attempts that are still there.
        events: Events of the job and its pods.
        curves: From the log of rank 0.
        explanation: What `ddpjob explain` says; its log lines and advice are shown for a job that has not succeeded.
        versions: Name and version of what took part.
        created: When the page was made.
    """
    title = f"{job.namespace}/{job.name}"
    state = "good" if job.succeeded else "bad" if job.failed else "start"
    no_events = "A local run has no events." if local_run(job) else "None that the cluster still keeps."
    sections = [
        _section("Attempts", _attempts(job)),
        _section("Where the time went", _time_spent(job)),
        *(_section(title_of(name), _curve(curves.points[name], curves.restarts)) for name in curves.metrics),
        *(() if job.succeeded else (_section(part.title, _pre("\n".join(part.lines))) for part in explanation[1:])),
        _section(
            "Ranks",
            _table(
                ["attempt", "rank", "pod", "node", "state", "exit code", "message"], (_rank(job, pod) for pod in pods)
            ),
        ),
        _section(
            "Events", _table(["time", "type", "reason", "object", "message"], map(_event, events), empty=no_events)
        ),
        _section("Manifest", _pre(yaml.safe_dump(redacted(job.body), sort_keys=False, width=100))),
        _section("Versions", _table(["component", "version"], versions.items())),
    ]
    progress = (
        " · ".join(facts(job.status.progress, finished=job.finished))
        if job.status.progress
        else "no progress was reported"
    )
    if named := metrics(job.status.progress):
        progress += f"\nmetrics: {named}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}: {_text(job.phase)}</title>\n<style>{_STYLE}:root {{ --state: var(--{state}); }}</style>\n"
        f'</head>\n<body>\n<h1>{_text(title)}</h1>\n<div class="outcome">{_text(outcome(job))}<br>'
        f'<span class="dim">{_text(progress)}</span></div>\n'
        + "\n".join(section for section in sections if section)
        + f'\n<p class="dim">Made by ddpjob on {_text(created)}. Values of environment variables are left out.</p>\n'
        "</body>\n</html>\n"
    )


def redacted(body: Mapping[str, Any]) -> dict[str, Any]:
    """The object without its status, without what servers and kubectl add, and without values that may be secret."""
    kept = copy.deepcopy({key: body[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in body})
    metadata = kept.get("metadata", {})
    for name in ("managedFields", "resourceVersion", "uid", "generation"):
        metadata.pop(name, None)
    metadata.get("annotations", {}).pop(ANNOTATION, None)
    if not metadata.get("annotations"):
        metadata.pop("annotations", None)
    return dict(_without_secrets(kept))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        is_variable = "name" in value and "value" in value
        return {
            key: _annotations(inner)
            if key == "annotations" and isinstance(inner, Mapping)
            else REDACTED
            if (is_variable and key == "value") or key in _OPTIONS or _is_secret(key, inner)
            else _without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_argument(value[:index], item) for index, item in enumerate(value)]
    return _without_values(value) if isinstance(value, str) else value


def _is_secret(name: object, value: object) -> bool:
    """Whether a field is a secret by its name. References to Secrets, such as secretName, name no secret."""
    return bool(_SECRET.search(str(name))) and not isinstance(value, Mapping | list | bool) and name not in _REFERENCES


def _annotations(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if name.startswith(_OWN_ANNOTATIONS) else REDACTED for name, value in found.items()}


def _without_values(text: str) -> str:
    return _USER.sub(REDACTED, _ASSIGNED.sub(rf"\1{REDACTED}", text))


def _argument(before: Sequence[Any], item: Any) -> Any:
    """An item of a list; the value of a flag such as --api-key is left out."""
    flag = before[-1] if before and isinstance(before[-1], str) else ""
    is_value = isinstance(item, str) and flag.startswith("-") and "=" not in flag and not item.startswith("-")
    return REDACTED if is_value and (flag == "-p" or _SECRET.search(flag)) else _without_secrets(item)


def _attempts(job: "Job") -> str:
    rows: list[Sequence[object]] = [
        (
            failure.attempt,
            failure.time,
            failure.reason,
            NOTHING if failure.global_rank is None else failure.global_rank,
            NOTHING if failure.rank is None else failure.rank,
            failure.node or NOTHING,
            NOTHING if failure.exit_code is None else failure.exit_code,
            failure.message + ("; the pod was replaced and the attempt continued" if failure.replaced else ""),
        )
        for failure in job.status.attempts
    ]
    if not current_attempt_has_failed(job.status):
        end = job.status.completion_time or NOTHING
        rows.append((job.status.attempt, end, job.phase, NOTHING, NOTHING, NOTHING, NOTHING, ""))
    table = _table(["attempt", "ended", "cause", "rank", "node rank", "node", "exit code", "message"], rows)
    return f'{table}<p class="dim">Restarts: {_text(restarts_so_far(job.status))}.</p>'


def _time_spent(job: "Job") -> str:
    spent = job.status.time
    if spent is None:
        return ""
    parts = [(name, getattr(spent, field), colour) for name, field, colour in _TIME_COLOURS]
    whole = sum(seconds for _, seconds, _ in parts)
    if not whole:
        return ""
    bar = "".join(
        f'<div style="width:{100 * seconds / whole:.2f}%;background:{colour}" title="{name}"></div>'
        for name, seconds, colour in parts
    )
    keys = "".join(
        f'<span><i class="key" style="background:{colour}"></i>{name} {duration(seconds)}</span>'
        for name, seconds, colour in parts
    )
    goodput = (
        "" if spent.goodput_percent is None else f"Goodput: {number(spent.goodput_percent)} % of the time was training."
    )
    return f'<div class="bar">{bar}</div><p class="legend">{keys}</p><p class="dim">{goodput}</p>'


def _curve(points: Sequence[Point], restarts: Sequence[int]) -> str:
    """One metric over steps as a picture."""
    steps, values = [point.step for point in points], [point.value for point in points]
    low, high, first, last = min(values), max(values), min(steps), max(steps)
    width, height = _WIDTH - _LEFT - 10, _HEIGHT - _BOTTOM - 10

    def x(step: float) -> float:
        return _LEFT + width * (step - first) / ((last - first) or 1)

    def y(value: float) -> float:
        return 10 + height * (1 - (value - low) / ((high - low) or 1))

    line = " ".join(f"{x(point.step):.1f},{y(point.value):.1f}" for point in points)
    marks = "".join(
        f'<line class="restart" x1="{x(step):.1f}" x2="{x(step):.1f}" y1="10" y2="{10 + height}"/>'
        for step in restarts
        if first <= step <= last
    )
    note = '<p class="dim">Dashed lines: restarts.</p>' if marks else ""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="curve over steps">'
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{10 + height}" y2="{10 + height}"/>'
        f'<line class="axis" x1="{_LEFT}" x2="{_LEFT}" y1="10" y2="{10 + height}"/>{marks}'
        f'<polyline class="curve" points="{line}"/>'
        f'<text x="{_LEFT - 6}" y="10" dy=".35em" text-anchor="end">{number(high)}</text>'
        f'<text x="{_LEFT - 6}" y="{10 + height}" dy=".35em" text-anchor="end">{number(low)}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">step {first:,}</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 8}" text-anchor="end">step {last:,}</text></svg>{note}'
    )


def _rank(job: "Job", pod: "Pod") -> Sequence[object]:
    code = NOTHING if pod.exit_code is None else pod.exit_code
    return (pod.attempt, pod.rank, pod.name, pod.node or NOTHING, pod.state, code, message_of(job, pod))


def _event(event: "JobEvent") -> Sequence[object]:
    times = f" ({event.count} times)" if event.count > 1 else ""
    return (re.sub(r"\.\d+", "", event.time), event.type, event.reason, event.object, event.message + times)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_text(title[:1].upper() + title[1:])}</h2>{content}</section>" if content else ""


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "None.") -> str:
    """A table; on a phone each row is a list of its cells, which name their titles, so that no column is outside the screen."""

    def cells(row: Sequence[object]) -> str:
        titled = zip(titles, row, strict=True)
        return "".join(f'<td data-title="{_text(title)}">{_text(str(cell))}</td>' for title, cell in titled)

    body = "".join(f"<tr>{cells(row)}</tr>" for row in rows)
    if not body:
        return f'<p class="dim">{empty}</p>'
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _pre(text: str) -> str:
    return f"<pre>{_text(text)}</pre>"


def _text(text: str) -> str:
    return html.escape("\n".join(map(visible, _USER.sub(REDACTED, text).split("\n"))))
