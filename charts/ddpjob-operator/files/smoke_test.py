"""Create one DDPJob and await its success: what `helm test` runs, in the operator's image.

Ends with 0 when the job has succeeded, else with 1 and the job's last status. The job is deleted either way; if this
program is killed before that, the job's own ttlSecondsAfterFinished does it.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from kubernetes import client, config

POLL_SECONDS = 1.0
REQUEST_TIMEOUT_SECONDS = 10.0


def main() -> int:
    """Run the job that the command line names; the exit code."""
    parser = argparse.ArgumentParser(description="Create one DDPJob, await its success, delete it.")
    parser.add_argument("job", type=Path, help="file with the DDPJob as JSON, with a namespace and a generateName")
    parser.add_argument("--deadline-seconds", type=float, required=True, help="longest wait for the end of the job")
    options = parser.parse_args()

    if "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config()  # type: ignore[no-untyped-call]  # the package has no annotations
    else:
        config.load_kube_config()  # type: ignore[no-untyped-call]  # the same
    jobs = Jobs(json.loads(options.job.read_text()))
    name = jobs.create()
    try:
        return await_success(jobs, name, options.deadline_seconds)
    finally:
        jobs.delete(name)


class Jobs:
    """The three calls that this program needs, on jobs like `manifest`."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self._manifest = manifest
        group, version = manifest["apiVersion"].split("/")
        self._where: dict[str, Any] = {
            "group": group,
            "version": version,
            "namespace": manifest["metadata"]["namespace"],
            "plural": "ddpjobs",
            "_request_timeout": REQUEST_TIMEOUT_SECONDS,
        }
        self._api = client.CustomObjectsApi()

    def create(self) -> str:
        """Create the job; its name."""
        job: Any = self._api.create_namespaced_custom_object(**self._where, body=self._manifest)
        say(f"created DDPJob {job['metadata']['namespace']}/{job['metadata']['name']}")
        return str(job["metadata"]["name"])

    def status(self, name: str) -> dict[str, Any]:
        """What the operator has written about the job; empty before its first word."""
        job: Any = self._api.get_namespaced_custom_object(**self._where, name=name)
        return dict(job.get("status") or {})

    def delete(self, name: str) -> None:
        """Delete the job; its pods and its Service go with it."""
        self._api.delete_namespaced_custom_object(**self._where, name=name)
        say(f"deleted DDPJob {self._where['namespace']}/{name}")


def await_success(jobs: Jobs, name: str, deadline_seconds: float) -> int:
    """Follow the job to its end, saying every change; 0 if it has succeeded within the deadline, else 1."""
    status: dict[str, Any] = {}
    told = ""
    end = time.monotonic() + deadline_seconds
    while time.monotonic() < end:
        status = jobs.status(name)
        if (now := summary(status)) != told:
            say(now)
            told = now
        if holds(status, "Succeeded"):
            return 0
        if holds(status, "Failed"):
            break
        time.sleep(POLL_SECONDS)
    else:
        if status:
            say(
                f"waited {deadline_seconds:g} s for DDPJob {name} to succeed or fail; see the reason above. A first"
                " pull of the trainer's image can take longer than that: then run the test again"
            )
        else:
            say(
                f"waited {deadline_seconds:g} s for a first status of DDPJob {name}: no operator has touched it. Read"
                " the operator's log, and compare the namespaces it watches with the job's"
            )
    say(f"last status: {json.dumps(status, indent=2)}")
    return 1


def holds(status: dict[str, Any], condition: str) -> bool:
    """Whether the condition of this type is True."""
    return any(c["type"] == condition and c["status"] == "True" for c in status.get("conditions", []))


def summary(status: dict[str, Any]) -> str:
    """The status in one line."""
    parts = [status.get("phase", "no status yet"), status.get("ready", ""), status.get("message", "")]
    return " · ".join(part for part in parts if part)


def say(text: str) -> None:
    """Print at once: the log is followed."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
