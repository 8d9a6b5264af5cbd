"""What has happened, one line each, for people who look at a schedule that broke an invariant."""

from typing import Any, Protocol

from simulation.api_server import JOBS, NODES, POD_GROUPS, PODS, SERVICES, Body
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
        self.say(f"{by} {verb} {plural[:-1]} {what}: {_gist(plural, body)}")


def _gist(plural: str, body: Body) -> str:
    status = body.get("status") or {}
    if plural == PODS:
        states = [_state(container["state"]) for container in status.get("containerStatuses", ())]
        marked = " deleted" if "deletionTimestamp" in body["metadata"] else ""
        deadline = " deadline" if body["spec"].get("activeDeadlineSeconds") == 1 else ""
        return f"{status.get('phase', 'new')} on {body['spec'].get('nodeName')} {states}{marked}{deadline}"
    if plural == JOBS:
        conditions = [c["type"] for c in status.get("conditions", ()) if c["status"] == "True"]
        gist = {
            key: status.get(key) for key in ("attempt", "phase", "reason", "restarts", "retryTime") if key in status
        }
        gist["failure"] = (status.get("failure") or {}).get("reason")
        suspended = " (spec.suspend)" if body["spec"].get("suspend") else ""
        return f"{gist} {conditions} {status.get('message', '')!r}{suspended}"
    if plural == SERVICES:
        return str(body["spec"].get("selector"))
    if plural == POD_GROUPS:
        return f"{body['spec']}{' deleted' if 'deletionTimestamp' in body['metadata'] else ''}"
    assert plural == NODES, plural
    return str([condition["status"] for condition in status["conditions"]])


def _state(state: Body) -> Any:
    ended = state.get("terminated")
    return f"{ended['exitCode']} {ended['reason']}" if ended else next(iter(state))
