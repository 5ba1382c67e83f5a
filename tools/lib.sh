# What the scripts beside this file share; sourced, not run. Leaves the shell in the repository's root.
set -euo pipefail
script=$(realpath "$0") called_in=$PWD
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

# usage: prints the comment at the top of the script, which is its manual.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$script"; }

# from_caller PATH: prints a path that a user has given, relative to the folder where the script was called.
from_caller() { if [[ $1 == /* ]]; then echo "$1"; else echo "$called_in/$1"; fi; }

# take_no_apt OPTIONS...: of a script with no options but --no-apt, which goes to install_options, and --help.
take_no_apt() {
  local option
  for option in "$@"; do
    case $option in
      --no-apt) install_options+=(--no-apt) ;;
      -h | --help)
        usage
        exit
        ;;
      *) die "unknown option '$option' (see --help)" ;;
    esac
  done
}

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

# in_debian13 COMMAND...: with .deps/debian13 as root directory (tools/install-deps.sh --gcc), the repository at its place.
in_debian13() {
  unshare --map-root-user --mount bash -c 'root=$1 new=$2; shift 2
    for place in "$root" /proc /dev /tmp; do mkdir -p "$new$place" && mount --rbind "$place" "$new$place"; done
    exec chroot "$new" env -C "$root" PATH=/usr/bin:/usr/sbin "$@"' bash "$root" "$deps/debian13" "$@"
}

inside=() # what commands of a build begin with

# configure PRESET [CMAKE OPTIONS]: sets build/PRESET up; its output is shown only when it fails.
configure() {
  local preset=$1
  shift
  ((${#inside[@]})) || need cmake ninja clang++-19
  say "configuring build/$preset"
  quietly "build/$preset.log" "${inside[@]}" cmake --preset "$preset" "$@" || die "cmake failed (all of it: build/$preset.log)"
}

# build PRESET [TARGETS]
build() {
  local preset=$1
  shift
  say "building build/$preset"
  "${inside[@]}" cmake --build "build/$preset" ${1:+--target "$@"} || die 'the build failed'
}

# One compiler cache for all clones: paths below the root are hashed relative to it.
export CCACHE_DIR="${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-$root}/.cache}/ccache}"
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$root}" CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"
