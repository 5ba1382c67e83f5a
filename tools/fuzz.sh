#!/usr/bin/env bash
# tools/fuzz.sh [--minutes N] [--no-apt] [--help] [TARGET...]
#
# Builds the fuzz targets of tests/fuzz with AddressSanitizer and UndefinedBehaviorSanitizer, runs all of them (or those
# named) from their seeds and prints a table. Exit code 1 when a target crashed, hung or ran out of memory: the last
# lines name the input that did it, and how to run it again. Such inputs stay in build/fuzz/crashes.
# Options:
#   --minutes N  how long in all, shared among the targets and the processor's cores; default 3
#   --no-apt     leave Debian's packages alone
# What a run finds new is kept in build/fuzz/corpus, where the next run goes on.

. "$(dirname "$0")/lib.sh"

minutes=3 targets=() install_options=(--asan --no-torch)
while (($#)); do
  case $1 in
    --minutes)
      minutes=${2:-}
      [[ $minutes =~ ^[0-9]+([.][0-9]+)?$ ]] || die "--minutes takes a number, not '$minutes'"
      shift
      ;;
    --no-apt) install_options+=(--no-apt) ;;
    -h | --help)
      usage
      exit
      ;;
    -*) die "unknown option '$1' (see --help)" ;;
    *) targets+=("$1") ;;
  esac
  shift
done

mapfile -t known < <(cd tests/fuzz && printf '%s\n' *_fuzz.cpp | sed 's/_fuzz\.cpp$//')
((${#targets[@]})) || targets=("${known[@]}")
for target in "${targets[@]}"; do
  [[ " ${known[*]} " == *" $target "* ]] || die "no target '$target'; there are: ${known[*]}"
done

tools/install-deps.sh "${install_options[@]}"
configure fuzz -DCOHIVE_WERROR=ON -DCOHIVE_TESTS=ON -DCOHIVE_WITH_TORCH=OFF -DCOHIVE_TOOLS=OFF
build fuzz "${targets[@]/#/fuzz_}"

cores=$(nproc)
seconds=$(awk -v m="$minutes" -v c="$cores" -v n="${#targets[@]}" 'BEGIN { s = int(m * 60 * c / n); print s < 1 ? 1 : s }')
out="$root/build/fuzz/runs" crashes="$root/build/fuzz/crashes"
rm -rf "$out"
mkdir -p "$out" "$crashes"
export ASAN_OPTIONS="detect_stack_use_after_return=1:allocator_may_return_null=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export ASAN_SYMBOLIZER_PATH="${ASAN_SYMBOLIZER_PATH:-/usr/bin/llvm-symbolizer-19}"

# run_target NAME: its log and exit code go below $out. An input may have 16 MiB, as frames may, and take 25 seconds; its
# memory, 16 times as much and a little at most, is a promise that every target checks.
run_target() {
  local name=$1 grown="$root/build/fuzz/corpus/$1" rc=0
  mkdir -p "$grown"
  "$root/build/fuzz/bin/fuzz_$name" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 -malloc_limit_mb=512 \
    -print_final_stats=1 -max_len=16777216 -artifact_prefix="$crashes/$name-" \
    "$grown" "$root/tests/fuzz/corpus/$name" >"$out/$name.log" 2>&1 || rc=$?
  echo "$rc" >"$out/$name.rc"
}

# row NAME: one line of the table, from the target's log, which has no figures when an input of the corpus crashed.
row() {
  local log="$out/$1.log" verdict=clean
  (($(<"$out/$1.rc") == 0)) || verdict=CRASHED
  local runs coverage inputs
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  coverage=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
  inputs=$(sed -n 's/.* corp: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
  printf '%-16s %12s %10s %8s  %s\n' "$1" "${runs:-?}" "${coverage:-?}" "${inputs:-?}" "$verdict"
}

say "fuzzing ${#targets[@]} targets for $seconds s each, $cores at a time"
running=0
for target in "${targets[@]}"; do
  if ((running >= cores)); then
    wait -n
    running=$((running - 1))
  fi
  run_target "$target" &
  running=$((running + 1))
done
wait

printf '%-16s %12s %10s %8s  %s\n' target inputs edges kept result
crashed=()
for target in "${targets[@]}"; do
  row "$target"
  (($(<"$out/$target.rc") == 0)) || crashed+=("$target")
done
((${#crashed[@]})) || exit 0
for target in "${crashed[@]}"; do
  echo
  grep -E '^(==[0-9]+==ERROR|SUMMARY|broken promise|.*runtime error)' "$out/$target.log" || tail -n 5 "$out/$target.log"
  sed -n 's/.*Test unit written to //p' "$out/$target.log" | while read -r input; do
    echo "again: build/fuzz/bin/fuzz_$target ${input#"$root/"}"
  done
done
exit 1
