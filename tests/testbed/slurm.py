"""A real Slurm on this machine: Debian's slurmctld, munged, and one slurmd per node, each node with a name of its own.

A node is a UTS, mount and PID namespace, so that its tasks see its name, resolve the other nodes' names, and end with it
whatever they do. All nodes share the loopback interface. Needs root; any number run side by side.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from testbed import ports
from testbed.errors import TestbedError
from testbed.instance import Instance
from testbed.packages import install_missing
from testbed.processes import Component
from testbed.waiting import DeadlineError, wait_for

PROGRAMS: Final[Mapping[str, str]] = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
}

#: Bounds a job of `run`, and each wait for a daemon.
JOB_SECONDS = 240
READY_SECONDS = 240
#: Tasks that fit a node, and GPUs that it pretends to have (Slurm counts them; there is no device behind them).
CPUS_PER_NODE = 8
GPU_FILES = ("/dev/null", "/dev/zero")

#: Job ids begin here, so that the ports which programs derive from them (20,000 and id modulo 10,000) are none of those
#: that the test bed's other servers take.
FIRST_JOB_ID = 9_901

_CONFIG = """\
ClusterName=testbed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
FirstJobId={first_job_id}
GresTypes=gpu
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

#: A node's first process: its name and its view of the others, then slurmd.
_NODE = 'hostname "$1" && mount --bind "$2" /etc/hosts && exec slurmd -D -N "$1"'
_NAMESPACES = ("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")

_numbers = itertools.count(1)


class SlurmError(TestbedError):
    """Slurm cannot run here."""


class Slurm:
    """A Slurm cluster; a context manager that brings it up, and removes it with everything it made.

    Args:
        nodes: how many; they are named slurm-1, slurm-2, and so on.
    """

    def __init__(self, *, nodes: int = 2) -> None:
        self.node_names = [f"slurm-{number}" for number in range(1, nodes + 1)]
        self.instance = Instance(f"slurm-{os.getpid()}-{next(_numbers)}")

    @property
    def folder(self) -> Path:
        """Its configuration, key, sockets and logs."""
        return self.instance.folder

    @property
    def environment(self) -> Mapping[str, str]:
        """What srun, sbatch and the others need to find it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise SlurmError("Slurm's daemons and the nodes' namespaces need root")
        install_missing(PROGRAMS)
        self.instance = Instance.create(self.instance.name)
        try:
            self._start()
        except BaseException:
            self.instance.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.instance.remove()

    def run(
        self, *command: str | Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run srun, sbatch, sinfo or another of Slurm's commands to its end; both streams in `stdout`.

        Raises:
            subprocess.TimeoutExpired: it took longer than `JOB_SECONDS`.
        """
        variables = {"PATH": os.environ["PATH"], **self.environment, **(environment or {})}
        return subprocess.run(
            command,
            env=variables,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=JOB_SECONDS,
            check=False,
        )

    def _start(self) -> None:
        self._write_configuration()
        munged = self._component(
            "munged",
            *("munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key"),
            *(f"--{kind}-file={self.folder}/munged.{kind}" for kind in ("pid", "log", "seed")),
            f"--socket={self.folder}/munge.socket",
        )
        controller = self._component("slurmctld", "slurmctld", "-D")
        munged.ready = lambda: (self.folder / "munge.socket").exists()
        controller.ready = lambda: "is UP" in self.run("scontrol", "ping").stdout
        munged.start()
        controller.start()
        nodes = [
            self._component(name, *_NAMESPACES, "sh", "-c", _NODE, "sh", name, str(self.folder / "hosts"))
            for name in self.node_names
        ]
        for node in nodes:
            node.launch()

        def idle() -> bool:
            for node in nodes:
                node.check()
            return self.run("sinfo", "-h", "-N", "-o", "%T").stdout.split() == ["idle"] * len(nodes)

        try:
            wait_for(f"the nodes {', '.join(self.node_names)} to be idle", idle, seconds=READY_SECONDS)
        except DeadlineError as error:
            reasons = self.run("sinfo", "-R", "-o", "%n: %E").stdout
            raise SlurmError("\n".join([str(error), reasons, *(one.tail() for one in (controller, *nodes))])) from None

    def _write_configuration(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        controller_port, *node_ports = ports.free(1 + len(self.node_names))
        config = _CONFIG.format(
            host=socket.gethostname(), port=controller_port, folder=self.folder, first_job_id=FIRST_JOB_ID
        )
        for name, port in zip(self.node_names, node_ports, strict=True):
            (self.folder / name).mkdir()
            config += f"NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS_PER_NODE} Gres=gpu:{len(GPU_FILES)}\n"
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(config)
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={file}\n" for file in GPU_FILES))
        hosts = [f"127.0.0.1 localhost {socket.gethostname()}"]
        hosts += [f"127.0.1.{number} {name}" for number, name in enumerate(self.node_names, start=1)]
        (self.folder / "hosts").write_text("\n".join(hosts) + "\n")

    def _component(self, name: str, *command: str) -> Component:
        return Component(
            name=name,
            command=command,
            log=self.folder / f"{name}.out",
            journal=self.instance.journal.file,
            ready=lambda: True,
            ready_seconds=READY_SECONDS,
            environment=self.environment,
        )
