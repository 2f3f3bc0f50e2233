# shellcheck shell=bash
# What jobs and submit.sh know of a cluster: reads the file SITE, if there is one, and defines
#   load_modules     loads site_modules; its status is that of `module load`
if [ -n "${SITE:-}" ]; then
  # shellcheck source=jobs/sites/lumi-c.sh
  . "$SITE"
fi

load_modules() {
  local status=0
  if [ -n "${site_modules:-}" ]; then
    set +u # older versions of module read variables that are not set
    # shellcheck disable=SC2086  # several modules
    module load $site_modules || status=$?
    set -u
  fi
  return "$status"
}
