#!/bin/bash
# run.sh RUN PROGRAM DATA [options]: one long run (casvm.cpsvm, cakrr.bkrr2, ...) in as many jobs as it needs.
# The folder RUN gets model.h5, report.json, the checkpoint, and log, a line for the begin and the end of every job.
# Before its time is up a job ends its ranks and submits the next one, which goes on from the checkpoint. Not when
#   * the run is done, or its input is wrong (status 2),
#   * this job finished no part: the next one would not either,
#   * MOST_JOBS=20 jobs have been begun.
# Exit status: that of the run; 75 if it goes on in another job. Run it from the repository. MARGIN=120 (PBS): seconds
# before the end; under Slurm and LSF the job's own directives say when.
set -euo pipefail
run=${1:?RUN PROGRAM DATA [options]} program=${2:?PROGRAM DATA [options]}
words=("${@:3}")
mkdir -p "$run"

# USR1 means that the time is nearly up. TERM is left alone: a job that its owner cancels must not come back.
step='' stopped=''
# shellcheck disable=SC2317,SC2329  # a trap calls it
stop() {
  stopped=yes
  if [ -n "$step" ]; then kill -TERM "$step" 2>/dev/null || true; fi # it may have ended by itself
}
trap stop USR1

. jobs/common.sh

note() { echo "$(date +%FT%T) job $job: $*" | tee -a "$run/log"; }

begun=0
if [ -e "$run/log" ]; then begun=$(grep -c ': begun' "$run/log" || true); fi
if ((begun >= ${MOST_JOBS:-20})); then
  note "not begun: $begun jobs were, and MOST_JOBS is ${MOST_JOBS:-20}"
  exit 1
fi
note "begun on $ranks ranks of $threads threads, $nodes nodes"
touch "$run/begun"

if [ "$queue" = pbs ]; then # PBS sends no signal of this kind
  limit=$(qstat -f "$job" | sed -n 's/.*Resource_List.walltime = //p')
  if [[ $limit =~ ^([0-9]+):([0-9]+):([0-9]+)$ ]]; then
    seconds=$((10#${BASH_REMATCH[1]} * 3600 + 10#${BASH_REMATCH[2]} * 60 + 10#${BASH_REMATCH[3]} - ${MARGIN:-120}))
    (
      trap 'kill $nap' TERM
      sleep $((seconds > 0 ? seconds : 0)) &
      nap=$!
      wait $nap && kill -USR1 $$
    ) &
    clock=$!
  fi
fi

launch_on "$ranks"
"${launcher[@]}" python -m "$program" --checkpoint "$run/checkpoint" --model "$run/model.h5" \
  --report "$run/report.json" "${words[@]}" &
step=$!
if [ -n "$stopped" ]; then stop; fi # the signal came before there was anything to end
while kill -0 "$step" 2>/dev/null; do wait "$step" || true; done # a signal ends a wait, but not the ranks
status=0
wait "$step" || status=$? # bash remembers it
trap '' USR1
if [ -n "${clock:-}" ]; then kill "$clock" 2>/dev/null || true; fi

if [ "$status" = 0 ]; then
  note "done"
  exit 0
fi
if [ "$status" = 2 ]; then
  note "wrong input (status 2): not submitted again"
  exit 2
fi
why="ended with status $status${stopped:+, its time was up}"
if [ -z "$(find "$run/checkpoint" -name '*.npz' -newer "$run/begun" -print -quit 2>/dev/null)" ]; then
  note "$why, and finished no part: not submitted again"
  exit "$status"
fi
if [ "$queue" = none ]; then
  note "$why; the same command goes on from its checkpoint"
  exit "$status"
fi
note "$why: submitting the next job"
if ! jobs/submit.sh --queue "$queue" --nodes "$nodes" --ranks-per-node "$ranks_per_node" \
  --cores $((ranks_per_node * threads)) --after "$job" large "$run" "$program" "${words[@]}"; then
  note "could not submit the next job; submit the run again by hand, and it goes on from its checkpoint"
  exit "$status"
fi
exit 75
