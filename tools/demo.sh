#!/usr/bin/env bash
# tools/demo.sh [--seconds N] [--text FILE-OR-FOLDER] [--keep] [--no-apt]
#
# Installs what is missing, builds, and lets a swarm train a model together on this machine: one bootstrap node and
# three trainers. In the middle one trainer is killed and a new one joins and downloads the state. Ends by itself with
# a table; exit code 1 when the loss did not fall or the surviving peers hold different parameters.
#   --seconds N   how long to train (default 60)
#   --text PATH   what to train on (default: the King James Bible of Debian's package bible-kjv)
#   --keep        keep logs and parameters in build/demo
#   --no-apt      leave Debian's packages alone

. "$(dirname "$0")/lib.sh"

seconds=60
text=''
keep=false
install_options=()
while (($#)); do
  case $1 in
    --seconds) seconds=${2:?--seconds needs a number}; shift 2 ;;
    --text) text=$(from_caller "${2:?--text needs a path}"); shift 2 ;;
    --keep) keep=true; shift ;;
    --no-apt) install_options+=(--no-apt); shift ;;
    -h | --help) usage; exit ;;
    *) printf 'demo.sh: unknown option %s (see --help)\n' "$1" >&2; exit 2 ;;
  esac
done
[[ $seconds =~ ^[0-9]+$ ]] && ((seconds >= 40)) || { echo 'demo.sh: --seconds needs a whole number of at least 40' >&2; exit 2; }
[[ -z $text || -r $text ]] || { printf 'demo.sh: cannot read %s\n' "$text" >&2; exit 2; }

tools/install-deps.sh "${install_options[@]}"
[[ -n $text ]] || need bible
configure release -DCOHIVE_WERROR=ON -DCOHIVE_WITH_TORCH=ON -DCOHIVE_TOOLS=ON # as test.sh: one build serves both
build release cohive-bootstrap cohive-train cohive-monitor

bin="$root/build/release/bin"
work="$root/build/demo"
rm -rf "$work"
mkdir -p "$work"
if [[ -z $text ]]; then
  text="$work/bible.txt"
  bible -f 'gen1:1-rev22:21' >"$text"
fi
say "training on $text ($(du -shL "$text" | cut -f1)) for $seconds s"

declare -A pid=()
stop_all() {
  local one
  for one in "${pid[@]}"; do
    kill -KILL "$one" 2>/dev/null || true
    wait "$one" 2>/dev/null || true # the shell says nothing about processes it was waited for
  done
  $keep || rm -f "$work"/*.params "$work/bible.txt"
}
trap stop_all EXIT

# wait_for FILE REGEX WHAT: until FILE has a line that matches, at most 20 s.
wait_for() {
  local i
  for ((i = 0; i < 200; ++i)); do
    grep -Eqs "$2" "$1" && return
    sleep 0.1
  done
  die "$3 did not start; its log: $1"
}

"$bin/cohive-bootstrap" --host-maddrs /ip4/127.0.0.1/tcp/0 --metrics-address 127.0.0.1:0 >"$work/bootstrap.log" 2>"$work/bootstrap.err" &
pid[bootstrap]=$!
wait_for "$work/bootstrap.log" '^Metrics:' 'the bootstrap node'
export INITIAL_PEERS
INITIAL_PEERS=$(sed -n 's/.*INITIAL_PEERS=\([^ ]*\).*/\1/p' "$work/bootstrap.log")
"$bin/cohive-monitor" serve --run-id demo --target-batch-size 768 --interval 1 --crawl-interval 5 --metrics-address 127.0.0.1:0 \
  >"$work/monitor.log" 2>"$work/monitor.err" &
pid[monitor]=$!
wait_for "$work/monitor.log" '^Page:' 'the monitor'
say "watch the run: $(sed -n 's/^Page: //p' "$work/monitor.log")"
say "watch the bootstrap node: $(sed -n 's/^Page: //p' "$work/bootstrap.log")"
say "bootstrap node: INITIAL_PEERS=$INITIAL_PEERS cohive-train ..."

# By a clock that nobody sets; trainers are told the moment by the other one.
now() { cut -d. -f1 /proc/uptime; }
end=$(($(now) + seconds))
until=$(($(date +%s) + seconds))
trainer() {
  "$bin/cohive-train" --text "$text" --run-id demo --host-maddrs /ip4/127.0.0.1/tcp/0 --metrics-address 127.0.0.1:0 \
    --target-batch-size 768 --batch-size 16 --matchmaking-time 2 --averaging-timeout 15 --average-state-every 5 \
    --learning-rate 0.003 --seed "$2" --until "$until" --save "$work/$1.params" --summary "$work/$1.json" >"$work/$1.log" 2>&1 &
  pid[$1]=$!
}
for n in 1 2 3; do trainer "trainer$n" "$n"; done
for n in 1 2 3; do
  wait_for "$work/trainer$n.log" '^Metrics:' "trainer$n"
  say "watch trainer$n: $(sed -n 's/^Page: //p' "$work/trainer$n.log")"
done

killed=false
joined=false
while (($(now) < end)); do
  sleep 3
  left=$((end - $(now)))
  for name in trainer1 trainer2 trainer3 trainer4; do
    [[ -n ${pid[$name]:-} ]] && printf '  %3d s left  %s  %s\n' "$((left > 0 ? left : 0))" "$name" "$(grep -E '^(epoch|caught)' "$work/$name.log" | tail -n 1)"
  done
  if ! $killed && ((left < seconds * 6 / 10)); then
    say 'killing trainer3 (SIGKILL)'
    kill -KILL "${pid[trainer3]}"
    wait "${pid[trainer3]}" 2>/dev/null || true
    unset 'pid[trainer3]'
    killed=true
  elif $killed && ! $joined; then
    say 'a new trainer joins'
    trainer trainer4 4
    joined=true
  fi
done

say 'the trainers agree on their last parameters'
survivors=(trainer1 trainer2 trainer4)
for name in "${survivors[@]}"; do
  for ((i = 0; i < 600; ++i)); do
    kill -0 "${pid[$name]}" 2>/dev/null || break
    sleep 0.1
  done
  wait "${pid[$name]}" || die "$name failed; its log: $work/$name.log"
  unset "pid[$name]"
done

printf '\n%-10s %6s %11s %9s %-22s %12s %8s\n' trainer epoch 'loss start' 'loss end' 'rounds by group size' 'bytes sent' 'joined'
failed=0
for name in "${survivors[@]}"; do
  python3 - "$name" "$work/$name.json" <<'PYTHON' || failed=1
import json, sys
name, path = sys.argv[1:]
s = json.load(open(path))
rounds = ", ".join(f"{n} peers: {c}" for n, c in enumerate(s["rounds_by_group_size"]) if c) or "none"
joined = "download" if s["state_downloads"] else "start"
print(f"{name:10} {s['epoch']:6} {s['loss_start']:11.4f} {s['loss_end']:9.4f} {rounds:22} {s['bytes_sent']:12} {joined:>8}")
fell = s["loss_end"] < s["loss_start"] - 0.2 or s["state_downloads"] and s["loss_end"] < 3.5
sys.exit(0 if fell and s["grad_rounds"] > 0 else 1)
PYTHON
done
((failed == 0)) || echo 'the loss did not fall, or a trainer took part in no averaging round'
if difference=$("$bin/cohive-train" --compare "$work"/trainer{1,2,4}.params); then
  say "all surviving peers hold the same parameters: $difference"
else
  say "the surviving peers DIFFER: $difference"
  failed=1
fi
exit "$failed"
