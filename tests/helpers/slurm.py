"""A Slurm of one node on this machine: its daemons, with a configuration of their own in a folder of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 600  # seconds
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
PlugStackConfig=/dev/null
# Neither cgroups nor accounting: they would need more of the machine than a test should.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=pmi2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=5
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 {node} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def wait_until(there: Callable[[], object], what: str) -> None:
    """Ask `there` until it is true."""
    end = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < end, f"not {what} after {PATIENCE} s"
        time.sleep(0.2)


class Slurm:
    """A running Slurm; `environment` is for Slurm's commands and for jobs."""

    def __init__(self, folder: Path) -> None:
        prefixes = ("PMI_", "PMIX_", "OMPI_", "MPI_", "SLURM_", "SBATCH_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
        python_path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "slurm")])
        self.environment = {**kept, "PATH": path, "PYTHONPATH": python_path, "SLURM_CONF": f"{folder}/slurm.conf"}

    def run(self, *words: object, **variables: object) -> str:
        """Run a command in the repository; return its output."""
        environment = self.environment | {name: str(value) for name, value in variables.items()}
        done = subprocess.run(
            list(map(str, words)), cwd=ROOT, env=environment, text=True, capture_output=True, timeout=PATIENCE,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self) -> list[str]:
        """Numbers of the jobs that wait or run."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def idle(self) -> None:
        """Wait until there are no jobs."""
        wait_until(lambda: not self.jobs(), "without jobs")

    def status(self, job: str) -> int:
        """Exit status of a job that has ended."""
        shown = self.run("scontrol", "show", "job", job)
        return int(shown.partition("ExitCode=")[2].partition(":")[0])


@contextmanager
def _daemon(words: list[object], log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        daemon = subprocess.Popen(
            list(map(str, words)), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **variables}
        )
        try:
            yield daemon
        finally:
            daemon.terminate()
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@contextmanager
def started() -> Iterator[Slurm]:
    """Start munged, slurmctld and slurmd; at the end jobs are cancelled, and all three stop."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)))
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(mode=0o755)
        folder.chmod(0o755)  # munged refuses a socket that not everybody could reach
        key = folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in sockets]
        for one in sockets:
            one.close()
        shown = subprocess.run(["slurmd", "-C"], capture_output=True, text=True, check=True).stdout.split()
        node = " ".join(
            word for word in shown if word.startswith(("CPUs", "Boards", "Sockets", "Cores", "Threads", "RealMemory"))
        )
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(folder=folder, host=host, ports=ports, node=node)
        (folder / "slurm.conf").write_text(text)
        slurm, conf = Slurm(folder), f"{folder}/slurm.conf"
        files = {"key-file": key, "socket": folder / "munge/socket", "pid-file": folder / "munge/pid",
                 "log-file": folder / "munge/log", "seed-file": folder / "munge/seed"}  # fmt: skip
        munge = ["munged", "--foreground", "--force", *(f"--{option}={file}" for option, file in files.items())]
        daemons = [stack.enter_context(_daemon(munge, folder / "munged.log"))]
        wait_until((folder / "munge" / "socket").exists, "munged ready")
        for name in ("slurmctld", "slurmd"):
            daemons.append(
                stack.enter_context(_daemon([name, "-D", "-f", conf], folder / f"{name}.log", SLURM_CONF=conf))
            )

        def ready() -> bool:
            logs = "\n".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
            assert all(daemon.poll() is None for daemon in daemons), f"a daemon has ended\n{logs}"
            asked = subprocess.run(["sinfo", "-h", "-o", "%T"], env=slurm.environment, capture_output=True, text=True)
            return asked.stdout.strip() == "idle"

        wait_until(ready, "Slurm ready")
        try:
            yield slurm
        finally:
            if jobs := slurm.jobs():
                slurm.run("scancel", *jobs)
            slurm.idle()
