#!/usr/bin/env bash
# tools/test.sh [--slow | --all] [--asan | --tsan [--threads] | --aarch64 | --gcc] [--no-interop] [--no-apt] [--help] [-- CTEST OPTIONS]
#
# Installs what is missing, builds everything with warnings as errors and runs the tests. The last line counts them:
# "N passed, N failed, N skipped", behind those that took longest; the exit code is 0 when none failed.
# Options:
#   --slow        also the tests whose label ends with `slow`, as CI does with every change
#   --all         also those whose label ends with `long`, and what they and the tests beside go-, js-, py- and
#                 rust-libp2p need, static programs among it, and Chromium for the tests of the live page
#   --asan        instead: the unit and simulation tests of all that does without LibTorch, under AddressSanitizer and
#                 UndefinedBehaviorSanitizer; with --all the emulated GPU and tests of the Python package, too
#   --tsan        instead: the same tests under ThreadSanitizer
#   --threads     of those, only the programs in which several threads meet; no other one is built
#   --aarch64     instead: the unit and simulation tests of all that does without LibTorch, built for aarch64 and run by qemu
#   --gcc         instead: the same tests, built by GCC 14 in a root directory of Debian 13
#   --no-interop  do not fetch Python hivemind: the tests against it are skipped unless it is there already
#   --no-apt      leave Debian's packages alone
#   -- OPTIONS    for ctest, such as -R name
# Environment: COHIVE_CUDA_ARCHITECTURES, the GPUs to compile kernels for, such as 80; default all that are supported.

. "$(dirname "$0")/lib.sh"

preset=release slow=0 all=0 interop=1 threads=0
install_options=() ctest_options=() targets=()
while (($#)); do
  case $1 in
    --slow) slow=1 ;;
    --all) slow=1 all=1 ;;
    --asan) preset=asan ;;
    --tsan) preset=tsan ;;
    --threads) threads=1 ;;
    --aarch64) preset=aarch64 ;;
    --gcc) preset=gcc ;;
    --no-interop) interop=0 ;;
    --no-apt) install_options+=(--no-apt) ;;
    -h | --help)
      usage
      exit
      ;;
    --)
      shift
      ctest_options+=("$@")
      break
      ;;
    *) die "unknown option '$1' (see --help)" ;;
  esac
  shift
done
[[ $threads == 0 || $preset == tsan ]] || die '--threads goes with --tsan'
if ((!slow)); then
  ctest_options+=(-LE '(long|slow)$')
elif ((!all)); then
  ctest_options+=(-LE 'long$')
fi
cmake_options=(-DCOHIVE_WERROR=ON -DCOHIVE_TESTS=ON)
if [[ $preset == aarch64 ]]; then
  install_options+=(--aarch64 --no-torch)
  cmake_options+=(-DCOHIVE_TOOLS=OFF)
  ctest_options+=(-L '^(unit|sim)')
elif [[ $preset == gcc ]]; then
  install_options+=(--gcc --no-torch)
  inside=(in_debian13)
  cmake_options+=(-DCOHIVE_TOOLS=OFF)
  ctest_options+=(-L '^(unit|sim)')
elif [[ $preset != release ]]; then
  install_options+=(--asan) # either sanitizer's runtime
  # Nothing is built with LibTorch, but the tests of the Python package run in an environment that has its wheel.
  if [[ $preset == asan ]] && ((all && interop)); then
    install_options+=(--interop)
  else
    install_options+=(--no-torch)
  fi
  # The emulated GPU tells of accesses beside its memory in any build.
  cmake_options+=(-DCOHIVE_WITH_TORCH=OFF -DCOHIVE_TOOLS=OFF -DCOHIVE_SLOW_TESTS=$all -DCOHIVE_LONG_TESTS=$all)
  if ((threads)); then
    targets=(cohive_{core,transport,averaging,optim,train}_test) # a program that is not built has no test with a label
    ctest_options+=(-L '^unit')
  else
    ctest_options+=(-L '^(unit|sim)')
  fi
  export ASAN_OPTIONS="detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
  export TSAN_OPTIONS="halt_on_error=0:second_deadlock_stack=1:external_symbolizer_path=/usr/bin/llvm-symbolizer-19:${TSAN_OPTIONS:-}"
  export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
  export ASAN_SYMBOLIZER_PATH="${ASAN_SYMBOLIZER_PATH:-/usr/bin/llvm-symbolizer-19}"
else
  cmake_options+=(-DCOHIVE_WITH_TORCH=ON -DCOHIVE_TOOLS=ON -DCOHIVE_SLOW_TESTS=$slow -DCOHIVE_LONG_TESTS=$all)
  if [[ -n ${COHIVE_CUDA_ARCHITECTURES:-} ]]; then
    cmake_options+=("-DCOHIVE_CUDA_ARCHITECTURES=$COHIVE_CUDA_ARCHITECTURES")
  else
    cmake_options+=(-UCOHIVE_CUDA_ARCHITECTURES) # CMake remembers those of an earlier run
  fi
  install_options+=(--cuda --docs)
  ((interop)) && install_options+=(--interop)
  ((all)) && install_options+=(--nat --libp2p --static --browser)
fi

# count_tests REPORT: the tests that took longest, and the last line, from CTest's JUnit report; fails when a test did.
count_tests() {
  python3 - "$1" <<'PYTHON'
import sys
import xml.etree.ElementTree as ElementTree

passed = failed = skipped = 0
seconds = {}
for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
    seconds[case.get("name")] = float(case.get("time", 0))
    skip = case.find("skipped")
    if case.get("status") == "run":
        passed += 1
    elif case.get("status") == "disabled" or (skip is not None and skip.get("message", "").startswith("SKIP_")):
        skipped += 1
    else:  # failed, timed out, or not run because its program is missing
        failed += 1
print("The slowest tests, in seconds:")
for name in sorted(seconds, key=seconds.get, reverse=True)[:20]:
    print(f"{seconds[name]:7.1f}  {name}")
print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed > 0 or passed + skipped == 0)
PYTHON
}

tools/install-deps.sh "${install_options[@]}"
configure "$preset" "${cmake_options[@]}"
build "$preset" "${targets[@]}"
if [[ $preset == release ]] && ((all)); then tools/static.sh --no-apt; fi
say 'running the tests'
jobs=$((($(nproc) * 3 + 1) / 2)) # many of them wait more than they compute
report="$root/build/$preset/tests.xml"
rm -f "$report"
"${inside[@]}" ctest --test-dir "build/$preset" --parallel "$jobs" --output-on-failure --output-junit "$report" \
  "${ctest_options[@]}" || true # its verdict counts what count_tests counts
[[ -f $report ]] || die 'ctest left no report'
count_tests "$report"
