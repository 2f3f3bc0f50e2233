#!/bin/bash
# Fills in nodes and cores, and submits a job:
#   jobs/submit.sh [options] weak|strong DATA.h5
#   jobs/submit.sh [options] large RUN PROGRAM DATA [options of the program]
#     --queue slurm|pbs|lsf    default: the one whose command is here
#     --nodes N                1
#     --ranks-per-node R       default: the site's, or 2: one for each socket of most nodes
#     --cores C                of a node, without hardware threads; default: the site's, or what the queue says of the
#                              smallest node of the partition
#     --time HH:MM:SS          default: what the job's script says
#     --site NAME              jobs/sites/NAME.sh, or a file like it: nodes, modules and options of a cluster
#     --partition P            (a queue, under PBS and LSF)
#     --account A              (a project, under LSF)
#     --qos Q --constraint F   under Slurm
#     --options 'WORDS'        more words for sbatch, qsub or bsub: reservation, licenses, ...
#     --after JOB              begin after that job has ended
#     --dry-run                only say what would be submitted
#     --help                   print these lines
# Run it from the repository. The job gets this environment; jobs/scaling.sh, run.sh and common.sh say what it sets.
set -euo pipefail
fail() {
  echo "submit.sh: $*" >&2
  exit 2
}

queue='' nodes=1 per_node='' cores='' after='' dry='' partition='' account='' qos='' constraint=''
# What a job that submits the next one would not know: the environment carries it.
export LIMIT=${LIMIT:-} QUEUE_OPTIONS=${QUEUE_OPTIONS:-} SITE=${SITE:-}
while [[ ${1:-} == -* ]]; do
  option=$1
  shift
  case $option in
  --dry-run)
    dry=yes
    continue
    ;;
  --help | -h)
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
  esac
  value=${1-}
  [ $# -gt 0 ] || fail "$option needs a value"
  case $option in
  --queue) queue=$value ;;
  --nodes) nodes=$value ;;
  --ranks-per-node) per_node=$value ;;
  --cores) cores=$value ;;
  --time) LIMIT=$value ;;
  --site) SITE=$value ;;
  --partition) partition=$value ;;
  --account) account=$value ;;
  --qos) qos=$value ;;
  --constraint) constraint=$value ;;
  --options) QUEUE_OPTIONS=$value ;;
  --after) after=$value ;;
  *) fail "$option: no such option (jobs/submit.sh --help lists them)" ;;
  esac
  shift
done
kind=${1:-}
case $kind in
weak | strong) name=${kind}_scaling data=${2:-} ;;
large) name=large_run data=${4:-} ;;
*) fail "'$kind': weak, strong or large is wanted" ;;
esac
[ -n "$data" ] || fail "$kind needs $([ "$kind" = large ] && echo 'RUN PROGRAM DATA' || echo DATA.h5)"
[ -e "$data" ] || fail "$data: no such file"
shift

if [ -n "$SITE" ]; then
  if [ -f "jobs/sites/$SITE.sh" ]; then SITE=jobs/sites/$SITE.sh; fi
  [ -f "$SITE" ] || fail "--site $SITE: no such file; jobs/sites has $(basename -s .sh jobs/sites/*.sh | xargs)"
  SITE=$(realpath "$SITE")
fi
. jobs/site.sh
queue=${queue:-${site_queue:-}} per_node=${per_node:-${site_ranks_per_node:-2}} cores=${cores:-${site_cores:-}}
if [ -z "$queue" ]; then
  if command -v sbatch >/dev/null; then
    queue=slurm
  elif command -v bsub >/dev/null; then
    queue=lsf
  elif command -v qsub >/dev/null; then
    queue=pbs
  else
    fail "none of sbatch, qsub and bsub is here; on one machine: bash jobs/$name.slurm"
  fi
fi
case $queue in
slurm)
  QUEUE_OPTIONS+="${partition:+ --partition=$partition}${account:+ --account=$account}"
  QUEUE_OPTIONS+="${qos:+ --qos=$qos}${constraint:+ --constraint=$constraint}"
  ;;
pbs | lsf)
  [ -z "$qos$constraint" ] || fail "--qos, --constraint: Slurm has them; for $queue: --options 'WORDS'"
  QUEUE_OPTIONS+="${partition:+ -q $partition}${account:+ $([ "$queue" = pbs ] && echo -A || echo -P) $account}"
  ;;
*) fail "--queue $queue: give slurm, pbs or lsf" ;;
esac
read -ra more <<<"${site_options:-} $QUEUE_OPTIONS"
if [ -z "$cores" ]; then
  case $queue in
  slurm)
    asked=() smallest=0 hardware=1
    for ((k = 0; k < ${#more[@]}; k++)); do
      case ${more[k]} in
      --partition=*) asked=("${more[k]}") ;;
      --partition | -p) asked=("--partition=${more[k + 1]:-}") ;;
      esac
    done
    # Sockets, cores of a socket, threads of a core.
    while read -r sockets each beside; do
      [[ $sockets$each$beside =~ ^[0-9]+$ ]] || continue
      if ((smallest == 0 || sockets * each < smallest)); then smallest=$((sockets * each)); fi
      if ((beside > hardware)); then hardware=$beside; fi
    done < <(sinfo --noheader ${asked[@]+"${asked[@]}"} --format='%X %Y %Z' | tr -d +)
    if ((smallest > 0)); then cores=$smallest; fi
    # Jobs get whole cores, and no thread beside another on one; the next job of a run has to know it, too.
    if ((hardware > 1)); then more+=(--hint=nomultithread) QUEUE_OPTIONS+=' --hint=nomultithread'; fi
    ;;
  pbs) cores=$(pbsnodes -a | sed -n 's/.*resources_available.ncpus = //p' | sort -n | head -1) ;;
  lsf) cores=$(lshosts -w | awk 'NR > 1 && $5 + 0 > 0 { print $5 }' | sort -n | head -1) ;;
  esac
  [ -n "$cores" ] || fail "the queue does not say how many cores its nodes have: --cores C"
fi
for number in "$nodes" "$per_node" "$cores"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || fail "'$number': nodes, ranks and cores are whole numbers"
done
threads=$((cores / per_node))
((threads >= 1)) || fail "$per_node ranks on $cores cores: each needs one"
[[ -z $LIMIT || $LIMIT =~ ^[0-9]+:[0-5][0-9]:[0-5][0-9]$ ]] || fail "--time $LIMIT: HH:MM:SS is wanted"

# An option that the program does not know should not be found after hours in the queue. The next job of a run, after
# another, has its options. Without the package here (it is in the site's container, or packed), nothing is checked.
check() {
  if [ "$(type -t module)" = function ]; then load_modules || fail "--site $SITE: its modules cannot be loaded"; fi
  if ! python -c 'import cacore' 2>/dev/null; then
    echo "submit.sh: $1 is not checked: python cannot import the package here" >&2
    return
  fi
  python -m "$1" --dry-run --quiet "${@:2}"
}
if [ "$kind" = large ] && [ -z "$after" ]; then (check "${@:2}") || exit 2; fi
script=jobs/$name.$queue
# qsub and bsub pass no words to a script: it finds them in the environment.
WORDS=$(printf '%q ' "$@")
case $queue in
slurm)
  submit=(sbatch "--nodes=$nodes" "--ntasks-per-node=$per_node" "--cpus-per-task=$threads")
  submit+=(${LIMIT:+"--time=$LIMIT"} ${after:+"--dependency=afterany:$after"})
  [ "$kind" = large ] && submit+=("--output=$1/job-%j.txt")
  submit+=(${more[@]+"${more[@]}"} "$script" "$@")
  ;;
pbs)
  export WORDS
  submit=(qsub -V -l "select=$nodes:ncpus=$cores:mpiprocs=$per_node:ompthreads=$threads")
  submit+=(${LIMIT:+-l "walltime=$LIMIT"} ${after:+-W "depend=afterany:$after"})
  [ "$kind" = large ] && submit+=(-o "$1/")
  submit+=(${more[@]+"${more[@]}"} "$script")
  ;;
lsf)
  export WORDS RANKS_PER_NODE=$per_node
  submit=(bsub -n $((nodes * cores)) -R "span[ptile=$cores]")
  submit+=(${LIMIT:+-W "${LIMIT%:*}"} ${after:+-w "ended($after)"})
  [ "$kind" = large ] && submit+=(-o "$1/job-%J.txt")
  submit+=(${more[@]+"${more[@]}"})
  ;;
esac
echo "$nodes nodes x $per_node ranks x $threads threads: $((nodes * per_node)) ranks"
printf '%q ' "${submit[@]}"
if [ "$queue" = lsf ]; then printf '< %q' "$script"; fi
if [ "$queue" != slurm ]; then printf '   # WORDS=%q' "$WORDS"; fi
echo
if [ -n "$dry" ]; then exit 0; fi
if [ "$kind" = large ]; then mkdir -p "$1"; fi
if [ "$queue" = lsf ]; then "${submit[@]}" <"$script"; else "${submit[@]}"; fi
