#!/bin/bash
# Slurm's programs on a Debian or Ubuntu that has none; tests/helpers/slurm.py starts them, nothing else does.
set -euo pipefail
if command -v slurmctld slurmd munged >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "install.sh: no Slurm here, and installing it needs root and apt-get" >&2
  exit 1
fi
# The answer of this file keeps apt-get from starting the daemons; some images have one.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod +x $policy
  trap 'rm -f $policy' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { apt-get update && apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
  slurmctld slurmd slurm-client munge; } >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
rm -f "$log"
