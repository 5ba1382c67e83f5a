#!/usr/bin/env bash
# tools/gpu-check.sh [--prebuilt DIR | --pack DIR] [--only PART...] [--no-apt] [--help]
#
# For a machine with an NVIDIA GPU: one command that says whether cohive works there, and how fast. Parts, in this order:
#   tests        the kernels beside the processor's codecs and steps, bit for bit, and what moves tensors of a GPU
#   memcheck, racecheck, synccheck, initcheck
#                the same under compute-sanitizer, which comes with the CUDA toolkit
#   bench        cohive-bench cuda
#   train        cohive-train --device cuda for some seconds: stepped on the GPU, offloaded, in the background, with PowerSGD,
#                with local updates
#   convergence  four trainers on the GPU beside one process (benchmarks/convergence.py), in some of its modes
# The last two need the CUDA half of LibTorch with all that it loads: of LIBTORCH_WHEEL=<site-packages of a pip install torch>, of
# .deps/torch, or Python's own torch. The last lines are a summary: the device, each part, and the figures of bench beside
# their goals. Without a GPU the same tests run on an emulated one: cohive_cuda_emulated_test, which tools/test.sh runs.
# Exit code: 0 when all has passed, 1 when something failed, 2 when there is no GPU that can be used, 3 when nothing failed
# and something could not be run.
# Options:
#   --prebuilt DIR  build nothing: run the programs that --pack has made; needs neither compiler nor network
#   --pack DIR      make them, on any machine: DIR, of at most 64 MB, is to be carried to one with a GPU, where
#                   DIR/tools/gpu-check.sh is this script and needs no option. The programs need the C library alone, of
#                   this release or a newer one; those that train need LibTorch besides
#   --only PART...  these parts only
#   --no-apt        leave Debian's packages alone

. "$(dirname "$0")/lib.sh"

all_parts=(tests memcheck racecheck synccheck initcheck bench train convergence)
most_megabytes=64 # of a pack
mode=build folder='' parts=() install_options=()
if [[ -f programs.tar.gz ]]; then mode=prebuilt folder=$root; fi # this script is one of a pack
while (($#)); do
  case $1 in
    --prebuilt | --pack)
      [[ -n ${2:-} ]] || die "$1 needs a folder"
      mode=${1#--} folder=$(from_caller "$2")
      shift
      ;;
    --only)
      while [[ -n ${2:-} && $2 != --* ]]; do
        [[ " ${all_parts[*]} " == *" $2 "* ]] || die "--only: '$2' is none of ${all_parts[*]}"
        parts+=("$2")
        shift
      done
      ((${#parts[@]})) || die '--only needs a part'
      ;;
    --no-apt) install_options+=(--no-apt) ;;
    -h | --help)
      usage
      exit
      ;;
    *) die "unknown option '$1' (see --help)" ;;
  esac
  shift
done
((${#parts[@]})) || parts=("${all_parts[@]}")

# ---- Building

# build_programs TORCH OPTIONS... -- TARGETS...: in build/gpu-alone, or build/gpu-torch with LibTorch's CUDA half.
build_programs() {
  local torch=$1 name=gpu-alone options=(-DCOHIVE_WITH_TORCH=OFF -DCOHIVE_TESTS=ON)
  shift
  if [[ -n $torch ]]; then
    name=gpu-torch options=(-DCOHIVE_WITH_TORCH=ON -DLIBTORCH_CUDA=ON "-DLIBTORCH_WHEEL=$torch" -DCOHIVE_TESTS=OFF)
  fi
  while [[ $1 != -- ]]; do options+=("$1") && shift; done
  shift
  need cmake ninja clang++-19
  say "building build/$name"
  quietly "build/$name.log" cmake --preset release -B "build/$name" -DCOHIVE_WITH_CUDA=ON -DCOHIVE_TOOLS=ON -DCOHIVE_INSTALL=OFF \
    "${options[@]}" || die "cmake failed (all of it: build/$name.log)"
  quietly "build/$name.log" cmake --build "build/$name" --target "$@" || die "the build failed (all of it: build/$name.log)"
}

pack() {
  local target=$1 program size
  tools/install-deps.sh --cuda --static "${install_options[@]}"
  # Without the libraries that make a program's network faster: what is looked at here is the GPU.
  local alone=(-DCOHIVE_SELF_CONTAINED=ON -DCOHIVE_IPSEC_MB=OFF -DCOHIVE_PORT_MAPPING=OFF)
  build_programs '' "${alone[@]}" -- cohive_cuda_test cohive-bench cohive-bootstrap
  build_programs "$deps/torch" "${alone[@]}" -- cohive-train cohive-bench
  work=$(mktemp -d) # not local: the trap is the script's
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/alone" "$work/torch" "$target/tools" "$target/benchmarks"
  for program in cohive_cuda_test cohive-bench cohive-bootstrap; do
    strip -o "$work/alone/$program" "build/gpu-alone/bin/$program"
    readelf -d "$work/alone/$program" | grep NEEDED | grep -vE '\[(lib(c|m|resolv|dl|pthread|rt)\.so|ld-linux)' &&
      die "$program needs a library that another machine may not have"
  done
  for program in cohive-train cohive-bench; do strip -o "$work/torch/$program" "build/gpu-torch/bin/$program"; done
  sed -n "s/^__version__ = '\([0-9]*\.[0-9]*\).*/\1/p" "$deps/torch/torch/version.py" >"$work/torch/version"
  tar -C "$work" --owner=0 --group=0 -czf "$target/programs.tar.gz" alone torch
  cp tools/gpu-check.sh tools/lib.sh "$target/tools"
  cp benchmarks/convergence.py "$target/benchmarks"
  if command -v bible >/dev/null; then bible -f 'gen1:1-rev22:21'; else cat docs/*.md docs/*/*.md; fi | gzip >"$target/text.gz"
  size=$(du -sm "$target" | cut -f1)
  ((size <= most_megabytes)) || die "$target has $size MB, and may have $most_megabytes"
  say "$target: $size MB, to be run as $target/tools/gpu-check.sh --prebuilt $target"
}

if [[ $mode == pack ]]; then
  pack "$folder"
  exit
fi

# ---- The machine

gpus=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null) && [[ -n $gpus ]] || {
  echo "gpu-check.sh: no GPU: nvidia-smi finds none" >&2
  exit 2
}
say "$gpus"

# find_torch: sets torch to a site-packages whose LibTorch can compute on GPUs here, or why_not.
find_torch() {
  local candidate loads wanted=${1:-} python_torch
  torch='' why_not="no LibTorch with a CUDA half was found (set LIBTORCH_WHEEL)"
  python_torch=$(python3 -c 'import importlib.util as u, os; print(os.path.dirname(os.path.dirname(u.find_spec("torch").origin)))' \
    2>/dev/null || true)
  for candidate in "${LIBTORCH_WHEEL:-}" "$deps/torch" "$python_torch"; do
    [[ -n $candidate && -f $candidate/torch/lib/libtorch_cuda.so ]] || continue
    loads=$(ldd "$candidate/torch/lib/libtorch_cuda.so" 2>/dev/null || true)
    if [[ $loads == *'not found'* ]]; then
      why_not="$candidate has not all that LibTorch's CUDA half loads"
    elif [[ -n $wanted ]] && ! grep -q "^__version__ = '$wanted\." "$candidate/torch/version.py"; then
      why_not="$candidate is not LibTorch $wanted, which these programs were built with"
    else
      torch=$candidate
      return
    fi
  done
}

needs_torch=''
[[ " ${parts[*]} " =~ ' train '|' convergence '|' bench ' ]] && needs_torch=1
if [[ $mode == prebuilt ]]; then
  [[ -f $folder/programs.tar.gz ]] || die "$folder has no programs.tar.gz: tools/gpu-check.sh --pack makes it"
  programs=$(mktemp -d)
  trap 'rm -rf "$programs"' EXIT
  tar -C "$programs" -xzf "$folder/programs.tar.gz"
  gunzip -c "$folder/text.gz" >"$programs/text"
  alone=$programs/alone of_torch=$programs/torch text=$programs/text
  find_torch "$(cat "$of_torch/version")"
  [[ -z $torch ]] || export LD_LIBRARY_PATH="$torch/torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
else
  tools/install-deps.sh --no-torch --cuda "${install_options[@]}"
  build_programs '' -- cohive_cuda_test cohive-bench cohive-bootstrap
  find_torch
  [[ -z $torch || -z $needs_torch ]] || build_programs "$torch" -- cohive-train cohive-bench
  alone=build/gpu-alone/bin of_torch=build/gpu-torch/bin text=build/gpu-check/text
  mkdir -p build/gpu-check
  cat docs/*.md docs/*/*.md >"$text"
fi

# Tests skip themselves where there is no driver: that must not look like success.
logs=build/gpu-check
mkdir -p "$logs"
"$alone/cohive-bench" cuda --megabytes 1 --seconds 0.1 >/dev/null 2>"$logs/probe.log" || {
  rc=$?
  cat "$logs/probe.log" >&2
  exit "$rc"
}

# ---- The parts

summary=() failed=0 missing=0
# check NAME COMMAND...
check() {
  local name=$1 begin=$SECONDS result=passed
  shift
  say "$name"
  quietly "$logs/$name.log" "$@" || result=FAILED failed=1
  summary+=("$(printf '%-24s %s in %d s' "$name" "$result" $((SECONDS - begin)))")
}
# cannot NAME WORDS...: why a part is not run.
cannot() {
  local name=$1
  shift
  missing=1
  summary+=("$(printf '%-24s not run: %s' "$name" "$*")")
}
# without NAME: whether LibTorch is missing for it.
without() {
  [[ -z $torch ]] && cannot "$1" "$why_not"
}

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
# A test that asks for too much memory counts as an error there.
sanitize() {
  if [[ -z $sanitizer ]]; then
    cannot "$1" 'compute-sanitizer is missing: it comes with the CUDA toolkit'
  else
    check "$1" "$sanitizer" --tool "$1" --error-exitcode 9 "$alone/cohive_cuda_test" \
      --gtest_filter='Codecs*:Feedback.*:OnDevice.*:OnBackends.*:Memory.*:-*ManyValues*:*MayBeTooMuch'
  fi
}

measure() {
  local program=$alone/cohive-bench
  [[ -z $torch ]] || program=$of_torch/cohive-bench
  "$program" cuda --seconds 10 >"$logs/bench.json"
}

trains() {
  "$of_torch/cohive-train" --device cuda --model cnn --host-maddrs /ip4/127.0.0.1/tcp/0 --metrics-address 127.0.0.1:0 \
    --batch-size 32 --target-batch-size 128 --matchmaking-time 1 --max-epochs 20 --seconds 120 "$@"
}

converges() {
  local bin
  bin=$(mktemp -d)
  ln -s "$(realpath "$alone")/cohive-bootstrap" "$(realpath "$of_torch")/cohive-train" "$bin"
  python3 benchmarks/convergence.py --bin "$bin" --text "$text" --device cuda --epochs 30 --seeds 1 --timeout 300 \
    --output "$logs/convergence.md" --only synchronous delay_grad_averaging 'delay_grad_averaging, not offloaded' use_local_updates \
    'PowerSGD, rank 4' float16 blockwise_8bit
  local rc=$?
  rm -r "$bin"
  return "$rc"
}

for part in "${parts[@]}"; do
  case $part in
    tests) check tests "$alone/cohive_cuda_test" ;;
    memcheck | racecheck | synccheck | initcheck) sanitize "$part" ;;
    bench) check bench measure ;;
    train)
      without train && continue
      check train.on-gpu trains
      check train.delayed trains --delay-optimizer-step --delay-grad-averaging
      check train.offloaded trains --offload-optimizer
      check train.offloaded-early trains --offload-optimizer --offload-gradients-early
      check train.offloaded-delayed trains --offload-optimizer --offload-gradients-early --delay-optimizer-step --delay-grad-averaging
      check train.powersgd trains --averager-rank 4
      check train.local-updates trains --use-local-updates
      check train.bfloat16 trains --mixed-precision bfloat16
      ;;
    convergence) without convergence || check convergence converges ;;
  esac
done

# ---- The summary

# figures FILE: those that have a goal, and what an offloaded step takes.
figures() {
  python3 - "$1" <<'PYTHON'
import json
import sys

measured = json.load(open(sys.argv[1]))
print(f"a copy within the GPU's memory: {measured['copy']:.0f} GB/s")
for name, row in measured["codecs"].items():
    shares = ", ".join(f"{what} {row[what]['share']:.0%}" for what in ("encode", "decode", "accumulate"))
    goal = f" (goal {row['goal']:.0%}: {'reached' if row['reached'] else 'MISSED'})" if "goal" in row else ""
    print(f"{name} beside it: {shares}{goal}")
for name, row in measured["steps_of_parameters"].items():
    print(f"{name} beside it: {row['share']:.0%}")
gradients = measured["gradients_to_host"]
print(f"gradients on their way to the host, hidden: {gradients['hidden_share']:.0%} (goal {gradients['goal']:.0%})")
steps = measured["steps"]
if isinstance(steps, dict):
    for name in ("libtorch", "libtorch_offloaded", "cohive", "cohive_delayed", "cohive_offloaded", "cohive_offloaded_delayed"):
        print(f"a step of {steps['parameters_MB']} MB, {name}: {steps[name]:.2f} ms beyond the batches")
    if "hidden" in steps:
        print(f"of an offloaded step, hidden: {steps['hidden']['share']:.0%} (goal {steps['hidden']['goal']:.0%})")
PYTHON
}

echo
say "gpu-check.sh, $(date -u +'%-d %B %Y'): $gpus"
printf '%s\n' "${summary[@]}"
if [[ -s $logs/bench.json ]]; then figures "$logs/bench.json" || cat "$logs/bench.json"; fi
[[ ! -s $logs/convergence.md ]] || cat "$logs/convergence.md"
if ((failed)); then
  say "something failed: the logs are in $logs"
  exit 1
fi
((missing)) && exit 3
exit 0
