"""What has happened, one line for each change: for people who want to see the life of a job, or why an invariant broke.

A line says only what the change changed.
"""

from typing import Protocol

from simulation.api_server import Body
from simulation.virtual_time import START_SECONDS


class _Clock(Protocol):
    def now(self) -> float: ...


class Trace:
    """Keeps the lines only if they will be printed."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self.lines: list[str] | None = None

    def say(self, text: str) -> None:
        """Add a line."""
        if self.lines is not None:
            self.lines.append(f"{self._clock.now() - START_SECONDS:9.3f}  {text}")

    def on_change(self, plural: str, old: Body | None, new: Body | None, by: str) -> None:
        """Add a line for a change of the API server."""
        if self.lines is None:
            return
        body = new or old
        assert body is not None
        verb = "creates" if old is None else "removes" if new is None else "changes"
        what = f"{body['metadata']['name']} ({body['metadata']['uid']}, v{body['metadata']['resourceVersion']})"
        before, after = (_gist(plural, old) if old else {}), (_gist(plural, new) if new else {})
        changes = [
            f"{name} {after.get(name) or 'none'}" for name in after if before.get(name, "") != after.get(name, "")
        ]
        self.say(f"{by} {verb} {plural[:-1]} {what}" + (f": {', '.join(changes)}" if changes else ""))


def _gist(plural: str, body: Body) -> dict[str, str]:
    """The fields by which one follows what happens, in the order in which they are shown."""
    match plural:
        case "pods":
            gist = _gist_of_pod(body)
        case "ddpjobs":
            gist = _gist_of_job(body)
        case "services":
            gist = {"selects": _readable(body["spec"].get("selector") or {})}
        case "podgroups":
            gist = {"spec": str(body["spec"])}
        case _:
            gist = {"conditions": _readable({c["type"]: c["status"] for c in body["status"]["conditions"]})}
    if "deletionTimestamp" in body["metadata"]:
        gist["deleted"] = "with a grace period"
    return gist


def _gist_of_pod(pod: Body) -> dict[str, str]:
    status = pod.get("status") or {}
    containers = {c["name"]: _state(c["state"]) for c in status.get("containerStatuses", ())}
    seconds = pod["spec"].get("activeDeadlineSeconds")
    return {
        "node": pod["spec"].get("nodeName") or "",
        "phase": status.get("phase", ""),
        "containers": _readable(containers),
        "activeDeadlineSeconds": str(seconds or ""),
    }


def _gist_of_job(job: Body) -> dict[str, str]:
    status = job.get("status") or {}
    failure, progress = status.get("failure") or {}, status.get("progress") or {}
    return {
        "suspend": "true" if job["spec"].get("suspend") else "",
        "attempt": str(status.get("attempt", "")),
        "phase": status.get("phase", ""),
        "reason": status.get("reason", ""),
        "failure": failure.get("reason", ""),
        "restarts": _readable(
            {name: count for name, count in (status.get("restarts") or {}).items() if count and name != "countedTimes"}
        ),
        "retryTime": status.get("retryTime") or "",
        "step": str(progress.get("step", "")),
        "conditions": "+".join(c["type"] for c in status.get("conditions", ()) if c["status"] == "True"),
        "message": f'"{status["message"]}"' if status.get("message") else "",
    }


def _state(state: Body) -> str:
    ended = state.get("terminated")
    return f"{ended['reason']} with exit code {ended['exitCode']}" if ended else next(iter(state))


def _readable(fields: Body) -> str:
    return " ".join(f"{name.removeprefix('ddpjob.dev/')}={value}" for name, value in fields.items())
