"""Stand-ins for the programs of Slurm, PBS and LSF, and for the ranks: what would be started, and how it would end.

A stand-in keeps its words, and the environment that jobs set, in a log. Those that start ranks go on as the program
behind their options, and that program, a stand-in for python, does what the next line of a plan says:

    part      finishes a part
    warn      sends USR1 to the job, as a queue does when the time is nearly up, and waits to be ended
    wait      waits to be ended
    NUMBER    ends with that status
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ("WORDS", "LIMIT", "QUEUE_OPTIONS", "RANKS_PER_NODE", "SRUN_CPUS_PER_TASK", "SITE")
SAID = {
    "sbatch": "Submitted batch job 18", "qsub": "18.server", "bsub": "Job <18> is submitted.",
    "sinfo": "2 24 1\n2+ 12+ 1+", "pbsnodes": "n1\n     resources_available.ncpus = 24\n",
    "qstat": "    Resource_List.walltime = 02:00:00",
    "lshosts": "HOST_NAME type model cpuf ncpus maxmem\nn1 X86_64 M 60.0 24 64G\nn2 UNKNOWN U 1.0 - -\n",
}  # fmt: skip
STARTERS = ("srun", "mpiexec")
HYDRA = "HYDRA build details:"

# What a queue sets for a job on 2 nodes of 24 cores, with 2 ranks on each.
JOB = {
    "slurm": {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NTASKS": "4",
              "SLURM_CPUS_PER_TASK": "12", "SLURM_SUBMIT_DIR": str(ROOT)},
    "pbs": {"PBS_JOBID": "17.server", "NCPUS": "12", "PBS_O_WORKDIR": str(ROOT)},
    "lsf": {"LSB_JOBID": "17", "LSB_MCPU_HOSTS": "n1 24 n2 24", "LS_SUBCWD": str(ROOT)},
}  # fmt: skip


class Queue:
    """One queue system of stand-ins in `folder`, and the repository's scripts under it."""

    def __init__(self, name: str, folder: Path, version: str = HYDRA) -> None:
        self.name, self.folder = name, folder
        programs = folder / "programs"
        programs.mkdir(parents=True)
        for program in (*SAID, *STARTERS, "python"):
            find = f"import sys\nsys.path.insert(0, {str(ROOT / 'tests')!r})\nfrom helpers import queues\n"
            (programs / program).write_text(f"#!{sys.executable} -I\n{find}queues.main()\n")
            (programs / program).chmod(0o755)
        (folder / "nodes").write_text("n1\nn1\nn2\nn2\n")
        queues = tuple(f"{prefix}_" for prefix in ("SLURM", "SBATCH", "SRUN", "PBS", "LSB", "PMI", "MPI"))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(queues)}
        path = os.pathsep.join([str(programs), *kept["PATH"].split(os.pathsep)])
        self.environment = {**kept, "PATH": path, "STAND_INS": str(folder), "MPIEXEC_VERSION": version}

    def plan(self, *lines: str) -> None:
        """Plan what the ranks do: one line per start."""
        (self.folder / "plan").write_text("".join(f"{line}\n" for line in lines))

    def run(self, *words: object, **variables: object) -> subprocess.CompletedProcess[str]:
        """A program of the repository, outside any job."""
        environment = self.environment | {name: str(value) for name, value in variables.items()}
        return subprocess.run(
            list(map(str, words)), cwd=ROOT, env=environment, text=True, capture_output=True, timeout=600, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def job(self, kind: str, words: str, **variables: object) -> subprocess.CompletedProcess[str]:
        """A job's script, as the queue starts it on the first node."""
        with subprocess.Popen(**self.started(kind, words, **variables)) as job:
            out, err = job.communicate(timeout=600)
        return subprocess.CompletedProcess([kind], job.returncode, out, err)

    def started(self, kind: str, words: str, **variables: object) -> dict:
        """Arguments of Popen for :meth:`job`."""
        of_job = JOB[self.name] | ({"PBS_NODEFILE": str(self.folder / "nodes")} if self.name == "pbs" else {})
        environment = self.environment | of_job | {name: str(value) for name, value in variables.items()}
        script = f"jobs/{kind}.{self.name}"
        command = ["bash", script] + (words.split() if self.name == "slurm" else [])
        if self.name != "slurm":
            environment["WORDS"] = words
        return {"args": command, "cwd": ROOT, "env": environment, "text": True, "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}  # fmt: skip

    def calls(self, *programs: str) -> list[dict]:
        """The calls of these programs so far: ``{"program": ..., "words": [...], "environment": {...}}``."""
        log = self.folder / "log"
        made = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [call for call in made if call["program"] in programs]


def main() -> None:
    """Be the program of this name."""
    folder, program, words = Path(os.environ["STAND_INS"]), Path(sys.argv[0]).name, sys.argv[1:]
    if program == "mpiexec" and words == ["--version"]:
        print(os.environ["MPIEXEC_VERSION"])
        return
    if program == "python" and (
        "--dry-run" in words or words[:1] == ["-c"]
    ):  # jobs/submit.sh asks whether the program takes these words
        os.execv(sys.executable, [sys.executable, *words])
    call = {"program": program, "words": words, "environment": {k: os.environ[k] for k in KEPT if k in os.environ}}
    if program == "bsub":
        call["script"] = sys.stdin.read()
    with (folder / "log").open("a") as log:
        log.write(json.dumps(call) + "\n")
    if program in STARTERS:
        begin = next(k for k, word in enumerate(words) if word in ("python", "bash"))
        os.execv(shutil.which(words[begin]) or words[begin], words[begin:])
    if program == "python":
        _ranks(folder, words)
    elif os.environ.get("REFUSING") == program:
        sys.exit(1)
    elif program == "sinfo" and "--partition=threads" in words:  # two hardware threads a core
        print("2 8 2")
    else:
        print(SAID[program])


def _ranks(folder: Path, words: list[str]) -> None:
    if "--checkpoint" not in words:
        return
    kept = Path(words[words.index("--checkpoint") + 1])
    kept.mkdir(exist_ok=True)
    now, *later = (folder / "plan").read_text().splitlines()
    (folder / "plan").write_text("".join(f"{line}\n" for line in later))
    for act in now.split():
        if act == "part":
            (kept / f"part-{len(list(kept.iterdir())):06d}.npz").write_text("")
        elif act in ("warn", "wait"):
            if act == "warn":
                os.kill(os.getppid(), signal.SIGUSR1)
            (folder / "waiting").touch()
            signal.pause()
        else:
            sys.exit(int(act))
