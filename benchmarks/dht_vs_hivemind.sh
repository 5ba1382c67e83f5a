#!/usr/bin/env bash
# benchmarks/dht_vs_hivemind.sh [--peers N] [--seconds S] [--no-install] [--help]
#
# Stores and gets in a DHT of N nodes (default 40) on loopback, S seconds each (default 5): first Python hivemind, then
# cohive, one after the other on an otherwise idle machine. Prints what both print and the ratio.
# Options:
#   --no-install  use what is installed and built

. "$(dirname "$0")/../tools/lib.sh"

peers=40 seconds=5 install=1
while (($#)); do
  case $1 in
    --peers | --seconds)
      [[ ${2:-} =~ ^[0-9]+([.][0-9]+)?$ ]] || die "$1 takes a number"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    --no-install) install=0 ;;
    -h | --help)
      usage
      exit
      ;;
    *) die "unknown option '$1' (see --help)" ;;
  esac
  shift
done

if ((install)); then
  tools/install-deps.sh --interop
  configure release -DCOHIVE_TOOLS=ON
  build release cohive-bench
fi
bench=build/release/bin/cohive-bench python=.deps/interop/bin/python
[[ -x $bench ]] || die "$bench is missing; run this without --no-install"
[[ -x $python ]] || die "$python is missing; run this without --no-install"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
say "Python hivemind, $peers nodes"
"$python" benchmarks/dht_hivemind.py --peers "$peers" --seconds "$seconds" 2>"$scratch/log" >"$scratch/hivemind" || {
  tail -n 20 "$scratch/log" >&2
  die 'the benchmark of hivemind failed'
}
cat "$scratch/hivemind"
say "cohive, $peers nodes"
"$bench" dht --peers "$peers" --seconds "$seconds" | tee "$scratch/cohive"

python3 - "$scratch/hivemind" "$scratch/cohive" <<'PYTHON'
import json
import sys

theirs, ours = (json.load(open(path)) for path in sys.argv[1:])
print(f"{'':12}{'hivemind':>12}{'cohive':>12}{'ratio':>10}")
for kind in ("stores", "gets"):
    for field, faster in (("per_second", 1), ("p50_ms", -1), ("p99_ms", -1)):
        a, b = theirs[kind][field], ours[kind][field]
        ratio = (b / a) ** faster
        print(f"{kind + ' ' + field.replace('per_second', '1/s').replace('_ms', ' ms'):12}{a:12.2f}{b:12.2f}{ratio:9.1f}x")
PYTHON
