#!/bin/bash
# scaling.sh weak|strong DATA.h5: a report per method and number of ranks in OUT, then a table of all reports.
# Run it from the repository. Environment variables, with their defaults:
#   OUT=scaling               folder of the reports
#   RANKS="1 2 4 ..."         up to all tasks of the job, or all cores
#   METHODS="bkrr2 kkrr2 dckrr"   and dkrr, twolevel, casvm, cpsvm, bkmsvm, fcfssvm, dissmo, cascade, dcsvm, dcfilter
#   ROWS=2000                 rows a rank (weak)
#   PARTS=64                  parts on any number of ranks (strong)
#   SIGMA=3 LAMBDA=1e-4       of ridge regression
#   C=1 GAMMA=scale           of SVMs
#   MPI_TYPE=pmix             what srun speaks to the MPI: pmix (Open MPI), pmi2 (MPICH)
set -euo pipefail
mode=${1:?weak or strong} data=${2:?DATA.h5}
out=${OUT:-scaling} rows=${ROWS:-2000} parts=${PARTS:-64}
most=${SLURM_NTASKS:-$(nproc)}
if [ -z "${RANKS:-}" ]; then
  RANKS=1
  for ((r = 2; r <= most; r *= 2)); do RANKS="$RANKS $r"; done
fi
# srun no longer inherits --cpus-per-task since Slurm 22.05.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
launch() {
  local ranks=$1
  shift
  if [ -n "${SLURM_JOB_ID:-}" ]; then srun --mpi="${MPI_TYPE:-pmix}" -n "$ranks" "$@"; else mpiexec -n "$ranks" "$@"; fi
}
mkdir -p "$out"
for ranks in $RANKS; do
  p=$parts file=$data
  if [ "$mode" = weak ]; then
    p=$ranks file=$out/rows_$ranks.h5
    python -m benchmarks.subset "$data" "$file" $((rows * ranks))
  fi
  for method in ${METHODS:-bkrr2 kkrr2 dckrr}; do
    divided="--partitions $p"
    case $method in dkrr | dissmo) divided= ;; esac # one problem of all rows
    case $method in
    *svm | dissmo | cascade | dcfilter) module=casvm.$method settings="--C ${C:-1} --gamma ${GAMMA:-scale}" ;;
    *) module=cakrr.$method settings="--sigma ${SIGMA:-3} --lambda ${LAMBDA:-1e-4}" ;;
    esac
    # shellcheck disable=SC2086
    launch "$ranks" python -m "$module" "$file" $divided $settings \
      --allow-overlap --quiet --report "$out/${mode}_${method}_$ranks.json"
  done
done
python -m benchmarks.collect "$out/${mode}"_*.json
