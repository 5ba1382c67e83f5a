# What the scripts beside this file share; sourced, not run. Leaves the shell in the repository's root.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
cd "$root"
deps="$root/.deps" # everything installed for this repository alone

# say WORDS...: one line of progress.
say() { printf '==> %s\n' "$*"; }

# die WORDS...: the reason in one line, then out.
die() {
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# need PROGRAM...: every program is there, or a line that says how to get it.
need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || die "'$program' is missing; tools/install-deps.sh installs it"
  done
}

# usage FILE: prints the comment at the top of a script, which is its manual.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$1"; }

# quietly LOG COMMAND...: runs it with its output in LOG, of which only a failure shows the end.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 && return
  local rc=$?
  tail -n 25 "$log" >&2
  return "$rc"
}
