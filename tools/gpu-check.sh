#!/usr/bin/env bash
# tools/gpu-check.sh [--no-apt] [--help]
#
# For a machine with an NVIDIA GPU: builds the tests of cohive::cuda, runs them on the GPU, then under each tool of
# compute-sanitizer, and prints a line for each; then it prints what `cohive-bench cuda` measures, as JSON. Kernels have to give
# the bits that the processor's codecs give. Last, where the CUDA half of LibTorch is installed with all that it loads
# (LIBTORCH_WHEEL=<site-packages of a pip install torch>), cohive-train trains on the GPU for some seconds: stepped there, and with
# the optimizer offloaded. Without a GPU the same tests run on an emulated one: cohive_cuda_emulated_test, which tools/test.sh runs.
# The exit code is 0 when all has passed, 1 when something failed, 2 when there is no GPU that can be used, 3 when tests passed
# and compute-sanitizer is missing.
# Options:
#   --no-apt    leave Debian's packages alone

. "$(dirname "$0")/lib.sh"

install_options=(--no-torch --cuda)
take_no_apt "$@"

gpus=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null) && [[ -n $gpus ]] || {
  echo "gpu-check.sh: no GPU: nvidia-smi finds none" >&2
  exit 2
}
say "$gpus"
tools/install-deps.sh "${install_options[@]}"
configure release -DCOHIVE_WITH_CUDA=ON -DCOHIVE_TESTS=ON -DCOHIVE_TOOLS=ON
build release cohive_cuda_test cohive-bench

program=build/release/bin/cohive_cuda_test
logs=build/gpu-check
mkdir -p "$logs"
failed=0
# check NAME COMMAND...
check() {
  local name=$1 begin=$SECONDS result=passed
  shift
  quietly "$logs/$name.log" "$@" || result=FAILED failed=1
  printf '%-12s %s in %d s (%s)\n' "$name" "$result" $((SECONDS - begin)) "$logs/$name.log"
}

check tests "$program"
if sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null); then
  for tool in memcheck racecheck synccheck initcheck; do
    check "$tool" "$sanitizer" --tool "$tool" --error-exitcode 9 "$program" --gtest_filter=Codecs*:Feedback.*:OnDevice.*
  done
else
  say 'compute-sanitizer is missing: it comes with the CUDA toolkit'
  ((failed)) || failed=3
fi
build/release/bin/cohive-bench cuda || failed=1

wheel=${LIBTORCH_WHEEL:-$deps/torch}
if ! loads=$(ldd "$wheel/torch/lib/libtorch_cuda.so" 2>/dev/null) || [[ $loads == *'not found'* ]]; then
  say "no training on the GPU: $wheel has no CUDA half of LibTorch that can be loaded (set LIBTORCH_WHEEL)"
  exit "$failed"
fi
quietly build/gpu.log cmake --preset release -B build/gpu -DCOHIVE_WITH_CUDA=ON -DCOHIVE_WITH_TORCH=ON -DCOHIVE_TESTS=OFF \
  -DCOHIVE_TOOLS=ON -DLIBTORCH_CUDA=ON -DLIBTORCH_WHEEL="$wheel" || die "cmake failed (all of it: build/gpu.log)"
build gpu cohive-train
trains() {
  build/gpu/bin/cohive-train --device cuda --model cnn --host-maddrs /ip4/127.0.0.1/tcp/0 --metrics-address 127.0.0.1:0 \
    --batch-size 32 --target-batch-size 128 --matchmaking-time 1 --max-epochs 20 --seconds 120 "$@"
}
check on-gpu trains
check offloaded trains --offload-optimizer
check early trains --offload-optimizer --offload-gradients-early
check delayed trains --offload-optimizer --offload-gradients-early --delay-optimizer-step --delay-grad-averaging
exit "$failed"
