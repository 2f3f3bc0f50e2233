# shellcheck shell=bash disable=SC2034
# What all jobs share, whatever queue runs them; scaling.sh and run.sh read it. It sets
#   queue            slurm, pbs, lsf, or none: one machine
#   job              the queue's number of this job
#   nodes            of this job
#   ranks_per_node   and threads, the cores of a rank
#   ranks            on all nodes
#   launcher         after `launch_on RANKS`: the words that start a program on that many ranks
# Variables that change it:
#   RANKS_PER_NODE=2     under LSF, where a slot is a core
#   MPI_TYPE=pmix|pmi2   what srun speaks to the MPI (default: what the cluster has set up; srun --mpi=list)
#   SITE=FILE            modules, interface and container of a cluster: see jobs/sites
#   STAGE=ARCHIVE        made by `jobs/stage.sh pack`: each node unpacks it, and ranks start from there
. jobs/site.sh
load_modules
if [ -n "${SLURM_JOB_ID:-}" ]; then
  queue=slurm job=$SLURM_JOB_ID nodes=${SLURM_JOB_NUM_NODES:-1} threads=${SLURM_CPUS_PER_TASK:-1}
  ranks=${SLURM_NTASKS:-$((nodes * ${SLURM_NTASKS_PER_NODE:-1}))}
elif [ -n "${PBS_NODEFILE:-}" ]; then
  # A line a rank. NCPUS is what `ompthreads` of the selection says.
  queue=pbs job=$PBS_JOBID nodes=$(sort -u "$PBS_NODEFILE" | wc -l) threads=${NCPUS:-1}
  ranks=$(wc -l <"$PBS_NODEFILE")
elif [ -n "${LSB_JOBID:-}" ]; then
  read -ra hosts <<<"$LSB_MCPU_HOSTS" # HOST SLOTS HOST SLOTS ...
  queue=lsf job=$LSB_JOBID nodes=$((${#hosts[@]} / 2)) threads=$((hosts[1] / ${RANKS_PER_NODE:-2}))
  ranks=$((nodes * ${RANKS_PER_NODE:-2}))
else
  queue=none job=$$ nodes=1 threads=1
  ranks=$(nproc)
fi
ranks_per_node=$(((ranks + nodes - 1) / nodes))
# Slurm 22.05 and later: srun does not take the job's --cpus-per-task any more.
export SRUN_CPUS_PER_TASK=$threads

# Open MPI hands no environment to other nodes unasked.
forwarded() {
  local name
  for name in PATH PYTHONPATH PYTHONSAFEPATH LD_LIBRARY_PATH; do
    if [ -n "${!name:-}" ]; then echo -n "-x $name "; fi
  done
}

# What mpiexec calls binding a rank to its cores: a rank takes as many threads as it may use cores.
bound() {
  local version
  version=$(mpiexec --version 2>&1)
  case $version in
  *"Open MPI"* | *OpenRTE* | *PRRTE*) echo "$(forwarded)--map-by ppr:$1:node:PE=$threads --bind-to core" ;;
  *Intel*) echo "-ppn $1 -genv I_MPI_PIN_DOMAIN $threads:compact" ;;
  *) echo "-ppn $1 -bind-to core:$threads" ;;
  esac
}

launch_on() {
  local asked=$1 used
  used=$(((asked + ranks_per_node - 1) / ranks_per_node)) # no more nodes than these ranks fill
  case $queue in
  slurm)
    launcher=(srun ${MPI_TYPE:+"--mpi=$MPI_TYPE"} "--nodes=$used" "--ntasks=$asked" "--cpus-per-task=$threads" --cpu-bind=cores)
    ;;
  none) launcher=(mpiexec -n "$asked") ;;
  *)
    local binding
    read -ra binding <<<"$(bound "$((asked < ranks_per_node ? asked : ranks_per_node))")"
    launcher=(mpiexec -n "$asked" "${binding[@]}")
    ;;
  esac
  local container
  read -ra container <<<"${site_container:-}"
  launcher+=(${container[@]+"${container[@]}"})
}

# A program once on each node, without MPI.
on_each_node() {
  case $queue in
  slurm) srun --mpi=none "--nodes=$nodes" "--ntasks=$nodes" --ntasks-per-node=1 "$@" ;;
  none) "$@" ;;
  *)
    case $(mpiexec --version 2>&1) in
    *"Open MPI"* | *OpenRTE* | *PRRTE*) mpiexec -n "$nodes" --map-by ppr:1:node --bind-to none "$@" ;;
    *) mpiexec -n "$nodes" -ppn 1 "$@" ;;
    esac
    ;;
  esac
}

if [ -n "${STAGE:-}" ]; then
  staged=${STAGE_DIR:-${TMPDIR:-/tmp}}/cakernels-$job
  on_each_node bash jobs/stage.sh unpack "$STAGE" "$staged" >/dev/null
  trap 'on_each_node rm -rf "$staged"' EXIT
  eval "$(jobs/stage.sh words "$staged")"
fi
