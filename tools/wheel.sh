#!/usr/bin/env bash
# tools/wheel.sh [--no-apt] [--out FOLDER] [--help]
#
# Builds the Python package: one wheel with libcohive.so and the programs cohive-bootstrap, cohive-monitor and
# cohive-dht, for every Python from 3.10 on and every Linux of this processor whose glibc is 2.34 or newer. Tries it in
# a fresh environment: installing, importing, the programs.
# Options:
#   --no-apt       leave Debian's packages alone
#   --out FOLDER   where the wheel goes; default build/wheel/dist
# Environment: PYTHON, the python3 (3.11 or newer) that packs it and tries it; default /usr/bin/python3.

. "$(dirname "$0")/lib.sh"

install_options=(--no-torch --cuda --wheel) out="$root/build/wheel/dist"
while (($#)); do
  case $1 in
    --no-apt) install_options+=(--no-apt) ;;
    --out)
      (($# > 1)) || die '--out needs a folder'
      out=$(realpath -m "$2")
      shift
      ;;
    -h | --help)
      usage "$0"
      exit
      ;;
    *) die "unknown option '$1' (see --help)" ;;
  esac
  shift
done
python="${PYTHON:-/usr/bin/python3}"

tools/install-deps.sh "${install_options[@]}"
configure wheel
build wheel cohive_c cohive-all
say 'packing'
mkdir -p "$out"
wheel=$("$python" packaging/wheel.py --library build/wheel/libcohive.so --program build/wheel/bin/cohive --out "$out") ||
  die 'the wheel could not be made'
say 'trying it in a fresh environment'
"$python" tests/package/test_wheel.py "$wheel" || die 'the wheel does not work (see above)'
say "packed $wheel ($(du -h "$wheel" | cut -f1))"
