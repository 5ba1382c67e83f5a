#!/usr/bin/env bash
# tools/wheel.sh [--test | --aarch64] [--no-apt] [--out FOLDER] [--help]
#
# Builds the Python package: one wheel with libcohive.so and the programs cohive-bootstrap, cohive-monitor and
# cohive-dht, for every Python from 3.10 on and every Linux of this processor whose glibc is 2.34 or newer. Tries it in
# a fresh environment of each such Python that this machine has: installing, importing, the programs.
# Options:
#   --test         also runs tests of the package (python/tests) on the wheel, beside torch
#   --aarch64      one for aarch64, built and tried beside qemu, without CUDA
#   --no-apt       leave Debian's packages alone
#   --out FOLDER   where the wheel goes; default build/wheel/dist
# Environment: PYTHON, the python3 (3.11 or newer) that packs it; default /usr/bin/python3.

. "$(dirname "$0")/lib.sh"

install_options=(--cuda --wheel) out="$root/build/wheel/dist" test=0 preset=wheel packing=()
while (($#)); do
  case $1 in
    --test) test=1 ;;
    --aarch64) preset=wheel-aarch64 ;;
    --no-apt) install_options+=(--no-apt) ;;
    --out)
      (($# > 1)) || die '--out needs a folder'
      out=$(from_caller "$2")
      shift
      ;;
    -h | --help)
      usage
      exit
      ;;
    *) die "unknown option '$1' (see --help)" ;;
  esac
  shift
done
python="${PYTHON:-/usr/bin/python3}"

# pythons: those that this machine has, one of each release from 3.10 on that can make environments.
pythons() {
  local one release known=' '
  for one in "$python" $(type -ap python3.1{0..9}) $(compgen -G "$HOME/.pyenv/versions/3.1*/bin/python3"); do
    release=$("$one" -c 'import ensurepip, sys, venv; print(*sys.version_info[:2]) if sys.version_info >= (3, 10) else 0' \
      2>/dev/null) || continue
    [[ -n $release && $known != *" $release "* ]] || continue
    known+="$release "
    echo "$one"
  done
}

# test_package WHEEL: the package's tests that need no other packages than torch, on an installed wheel.
test_package() {
  local site="$root/build/wheel/site" name
  rm -rf "$site"
  "$python" -m pip install --quiet --no-index --target "$site" "$1" || die 'the wheel could not be installed'
  for name in as_hivemind dht native optimizer types validators; do
    say "tests of the wheel: $name"
    env -u COHIVE_LIBRARY PYTHONPATH="$site" COHIVE_BIN_DIR="$site/bin" \
      tests/interop/run.sh "$root/python/tests/test_$name.py" || die 'the wheel does not work (see above)'
  done
}

[[ $test == 0 || $preset == wheel ]] || die '--test runs on this machine: leave --aarch64 out'
if [[ $preset == wheel-aarch64 ]]; then
  install_options=("${install_options[@]/--cuda/--aarch64}")
  packing+=(--machine aarch64 --no-cuda)
fi
if ((test)); then install_options+=(--interop); else install_options+=(--no-torch); fi
tools/install-deps.sh "${install_options[@]}"
configure "$preset"
build "$preset" cohive_c cohive-all
say 'packing'
mkdir -p "$out"
wheel=$("$python" packaging/wheel.py --library "build/$preset/libcohive.so" --program "build/$preset/bin/cohive" --out "$out" \
  "${packing[@]}") || die 'the wheel could not be made'
if [[ $preset == wheel ]]; then
  say 'trying it in fresh environments'
  mapfile -t all_pythons < <(pythons)
  "$python" tests/package/test_wheel.py "$wheel" "${all_pythons[@]}" || die 'the wheel does not work (see above)'
else
  say 'trying it under qemu'
  "$python" tests/package/test_wheel.py --aarch64 "$wheel" "$deps/aarch64" || die 'the wheel does not work (see above)'
fi
if ((test)); then test_package "$wheel"; fi
say "packed $wheel ($(du -h "$wheel" | cut -f1))"
