#!/bin/bash
# The environment of Python in one file, for jobs whose ranks would ask a shared file system for each of its thousands.
#   jobs/stage.sh pack ARCHIVE         once, with the environment's python on PATH: packs what `python -m cakrr.bkrr2` needs
#   STAGE=ARCHIVE jobs/submit.sh ...   each node unpacks it into STAGE_DIR (default: TMPDIR, /tmp), and ranks start there
# and by hand, what jobs/common.sh does:
#   jobs/stage.sh unpack ARCHIVE DIR   on each node, under srun or mpiexec
#   jobs/stage.sh words DIR            the lines that put DIR on PATH, for `eval`
# Compiled code (numba's) travels along: that of cakrr.bkrr2 and casvm.cpsvm on dense rows, which `pack` runs, and that of
# everything that ran from this environment before. It holds for one kind of processor: pack on a node like those of the jobs.
set -euo pipefail

pack() {
  local archive=$1 room
  room=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder that is known now
  trap "rm -rf '$room'" EXIT
  mkdir "$room/src"
  # Times are kept to the last digit: numba and Python ask them whether what they compiled is still right.
  PYTHONSAFEPATH=1 python - "$room" "$(dirname "$0")/.." <<'PYTHON'
import shutil, sys, sysconfig
from importlib.util import find_spec
from pathlib import Path

room, env, base = Path(sys.argv[1]), Path(sys.prefix), Path(sys.base_prefix)
version = f"python{sysconfig.get_python_version()}"
if env == base:
    sys.exit("stage.sh: python on PATH is not that of a virtual environment: activate one, or put its bin first on PATH")
# Files that Python and numba are just writing beside compiled code are gone before they are copied.
unfinished = shutil.ignore_patterns("*.tmp.*", "*.pyc.*")
# Not what the environment has beside Python's own folders: another MPI, tests' caches.
for part in ("bin", "lib", "include", "share", "pyvenv.cfg"):
    if (env / part).is_dir():
        shutil.copytree(env / part, room / "env" / part, symlinks=True, ignore=unfinished)
    elif (env / part).exists():
        shutil.copy2(env / part, room / "env" / part)
if not base.is_relative_to("/usr"):  # else each node has it already
    unused = shutil.ignore_patterns("site-packages", "test", "idlelib", "config-*", "*.a")
    shutil.copytree(base / "lib", room / "base/lib", symlinks=True, ignore=unused)
    (room / "base/bin").mkdir()
    shutil.copy2(base / "bin" / version, room / "base/bin" / version)
    for link in ("python", "python3", version):
        (room / "env/bin" / link).unlink(missing_ok=True)
        (room / "env/bin" / link).symlink_to(f"../../base/bin/{version}")
shutil.copytree(Path(sys.argv[2], "benchmarks"), room / "src/benchmarks", ignore=unfinished)  # which is not installed
for package in ("asygcd", "cacore", "cakriging", "cakrr", "casvm", "partition"):
    found = find_spec(package)
    if found is not None and not Path(found.origin).is_relative_to(env):  # an editable installation, or PYTHONPATH
        shutil.copytree(Path(found.origin).parent, room / "src" / package, ignore=unfinished)
PYTHON
  home "$room"
  (
    unset NUMBA_CACHE_DIR # beside the code, so that it is packed with it
    eval "$(words "$room")"
    python -m compileall -q "$room/env/lib" "$room/src" >/dev/null || true # some packages ship files that no Python reads
    python -c "
import numpy as np
X = np.random.default_rng(0).normal(size=(64, 4))
np.savetxt('$room/rows.csv', np.c_[X, np.where(X[:, 0] > 0, 1, -1)], delimiter=',')"
    python -m cakrr.bkrr2 "$room/rows.csv" --partitions 2 --quiet
    python -m casvm.cpsvm "$room/rows.csv" --partitions 2 --quiet
    rm "$room/rows.csv"
  )
  tar --format=posix -C "$room" -cf - . | gzip -1 >"$archive.new"
  mv "$archive.new" "$archive"
  echo "$archive: $(find "$room" -type f | wc -l) files, $(du -m "$archive" | cut -f 1) MiB"
}

# Python finds its own modules through this line.
home() {
  if [ -d "$1/base" ]; then sed -i "s|^home = .*|home = $1/base/bin|" "$1/env/pyvenv.cfg"; fi
}

unpack() {
  if [ -e "$2/unpacked" ]; then return; fi # by an earlier call of this job
  mkdir -p "$2"
  tar -C "$2" -xzf "$1"
  home "$2"
  touch "$2/unpacked"
}

# shellcheck disable=SC2016  # whoever evaluates these lines expands them
words() {
  # Without the current folder, which -m would search first, and which is on the shared file system.
  printf 'export PATH=%q:$PATH PYTHONPATH=%q PYTHONSAFEPATH=1\n' "$1/env/bin" "$1/src"
  if [ -d "$1/base/lib" ]; then printf 'export LD_LIBRARY_PATH=%q${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n' "$1/base/lib"; fi
  echo 'unset NUMBA_CACHE_DIR VIRTUAL_ENV'
}

case ${1:-} in
pack) pack "${2:?ARCHIVE}" ;;
unpack) unpack "${2:?ARCHIVE}" "${3:?DIR}" ;;
words) words "${2:?DIR}" ;;
*)
  echo "stage.sh: '${1:-}': pack, unpack or words is wanted" >&2
  exit 2
  ;;
esac
