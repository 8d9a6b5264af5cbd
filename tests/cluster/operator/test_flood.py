"""A flood of requests to the operator's own port takes nothing from jobs, from the Lease or from the kubelet's probes."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from pathlib import Path

from ddpjob_operator.transport.resources import LEASES
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess

NUM_CONNECTIONS = 1000
#: Opens so many connections, asks for the metrics on each without end, and connects again whenever it can.
CLIENTS = f"""
import asyncio, sys
async def ask():
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
            writer.write(b"GET /metrics HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" * 20)
            while await reader.read(65536): pass
            writer.close()
        except OSError:
            await asyncio.sleep(0.05)
async def flood():
    asks = [asyncio.create_task(ask()) for _ in range({NUM_CONNECTIONS})]
    await asyncio.sleep(0)
    print("flooding", flush=True)
    await asyncio.wait(asks)
asyncio.run(flood())
"""


async def renewed_at(namespace: Namespace) -> str:
    """When the Lease was renewed last."""
    return str((await namespace.client.get(LEASES, namespace.name, "operator"))["spec"]["renewTime"])


async def is_renewed(namespace: Namespace, before: str) -> bool:
    return await renewed_at(namespace) > before


async def probe(path: Path, page: str) -> Process:
    """The kubelet's probe, run to its end."""
    arguments = ("-m", "ddpjob_operator.probe", str(path), page)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=DEVNULL)
    await process.wait()
    return process


async def test_jobs_run_while_a_thousand_clients_ask_for_metrics(
    namespace: Namespace, leased_operator: Callable[..., OperatorProcess], tmp_path: Path
) -> None:
    socket = tmp_path / "probes"
    operator = leased_operator("flooded", "--probe-socket", str(socket))
    await asyncio.to_thread(operator.start)
    flood = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENTS, str(operator.port), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert flood.stdout is not None
        assert await flood.stdout.readline() == b"flooding\n"
        before = await renewed_at(namespace)
        for number in range(10):
            await namespace.apply(f"job-{number}", nodes=2)
            await namespace.reaches(f"job-{number}", "Running")
            assert [(await probe(socket, page)).returncode for page in ("/livez", "/readyz")] == [0, 0]
        await eventually("the Lease to be renewed", lambda: is_renewed(namespace, before))
        assert flood.returncode is None
    finally:
        flood.kill()
        await flood.wait()
    assert "could not be renewed" not in operator.log.read_text()
    assert operator.running
