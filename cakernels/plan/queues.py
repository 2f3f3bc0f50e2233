"""Job scripts for Slurm, PBS and LSF."""

from __future__ import annotations

from math import ceil

from cakernels.plan.layout import JobLayout

QUEUES = ("slurm", "pbs", "lsf")
_MARGIN = 1.5  # factor of the planned seconds for the time limit, and further seconds
_FURTHER = 600.0
_ROOM = 1.25  # factor of the planned memory


def script(queue: str, layout: JobLayout, seconds: float, peak: float, command: str, mpi: str = "pmi2") -> str:
    """A job script that runs `command` with this layout.

    Parameters
    ----------
    queue : {"slurm", "pbs", "lsf"}
    layout : JobLayout
    seconds : float
        Planned time; the script asks for half as much again and ten minutes.
    peak : float
        Planned memory per rank in bytes; the script asks for a quarter more.
    command : str
    mpi : str
        Interface by which Slurm's srun starts the ranks: "pmix" for Open MPI, "pmi2" for MPICH and Intel MPI.
    """
    minutes = ceil((_MARGIN * seconds + _FURTHER) / 60)
    on_node = min(layout.ranks, layout.ranks_per_node)
    cores = on_node * layout.threads
    gib = max(1, ceil(_ROOM * peak * on_node / 2**30))
    hours = f"{minutes // 60:02d}:{minutes % 60:02d}"
    lines = {
        "slurm": [
            f"#SBATCH --nodes={layout.nodes}", f"#SBATCH --ntasks={layout.ranks}",
            f"#SBATCH --ntasks-per-node={on_node}", f"#SBATCH --cpus-per-task={layout.threads}",
            f"#SBATCH --mem={gib}G", f"#SBATCH --time={hours}:00",
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", f"srun --mpi=${{MPI_TYPE:-{mpi}}} {command}",
        ],
        "pbs": [
            f"#PBS -l select={layout.nodes}:ncpus={cores}:mpiprocs={on_node}:ompthreads={layout.threads}:mem={gib}gb",
            f"#PBS -l walltime={hours}:00", "cd $PBS_O_WORKDIR", f"mpiexec -n {layout.ranks} {command}",
        ],
        "lsf": [
            f"#BSUB -n {layout.nodes * cores}", f'#BSUB -R "span[ptile={cores}] rusage[mem={gib}GB]"',
            f"#BSUB -W {hours}", f"mpiexec -n {layout.ranks} -ppn {on_node} {command}",
        ],
    }  # fmt: skip
    return "\n".join(["#!/bin/bash", *lines[queue]]) + "\n"
