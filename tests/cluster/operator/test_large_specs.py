"""The operator of all tenants next to the jobs of one whose specs are as large as the API server stores."""

from pathlib import Path
from typing import Any

from support.operator_cluster import Namespace
from support.operator_process import OperatorProcess

#: The chart's resources.limits.memory.
LIMIT_MIB = 512
NUM_JOBS = 35


def large_template() -> dict[str, Any]:
    """1.1 MiB of small objects, which take ten times as much memory."""
    terms = [
        {"matchExpressions": [{"key": f"k{number}", "operator": "In", "values": [f"v{number}"]}]}
        for number in range(14_000)
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"spec": {"affinity": {"nodeAffinity": required}}}


def peak_mib(process: OperatorProcess) -> float:
    """The most memory that the process had so far."""
    assert process.process is not None
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


async def test_they_fail_with_their_size_and_the_operator_stays_within_the_memory_of_the_chart(
    namespace: Namespace, operator_process: OperatorProcess
) -> None:
    template = large_template()
    for number in range(NUM_JOBS):
        await namespace.apply(f"large-{number}", nodes=1, suspend=True, template=template)
    for number in range(NUM_JOBS):
        failed = await namespace.reaches(f"large-{number}", "Failed")
        assert "and 131072 are the most" in failed["message"]
    operator_process.kill()
    operator_process.start()  # which lists all of them
    await namespace.apply("small", nodes=2)
    await namespace.reaches("small", "Running")
    peak = peak_mib(operator_process)
    assert peak < LIMIT_MIB, f"{peak:.0f} MiB"
