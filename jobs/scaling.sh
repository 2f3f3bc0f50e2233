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
# and those of jobs/common.sh.
set -euo pipefail
mode=${1:?weak or strong} data=${2:?DATA.h5}
out=${OUT:-scaling} rows=${ROWS:-2000} parts=${PARTS:-64}
. jobs/common.sh
if [ -z "${RANKS:-}" ]; then
  RANKS=1
  for ((r = 2; r <= ranks; r *= 2)); do RANKS="$RANKS $r"; done
fi
mkdir -p "$out"
for n in $RANKS; do
  p=$parts file=$data
  if [ "$mode" = weak ]; then
    p=$n file=$out/rows_$n.h5
    python -m benchmarks.subset "$data" "$file" $((rows * n))
  fi
  launch_on "$n"
  for method in ${METHODS:-bkrr2 kkrr2 dckrr}; do
    divided=(--partitions "$p")
    case $method in dkrr | dissmo) divided=() ;; esac # one problem of all rows
    case $method in
    *svm | dissmo | cascade | dcfilter) module=casvm.$method settings=(--C "${C:-1}" --gamma "${GAMMA:-scale}") ;;
    *) module=cakrr.$method settings=(--sigma "${SIGMA:-3}" --lambda "${LAMBDA:-1e-4}") ;;
    esac
    "${launcher[@]}" python -m "$module" "$file" "${divided[@]}" "${settings[@]}" \
      --allow-overlap --quiet --report "$out/${mode}_${method}_$n.json"
  done
done
python -m benchmarks.collect "$out/${mode}"_*.json
