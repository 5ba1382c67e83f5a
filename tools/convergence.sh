#!/usr/bin/env bash
# tools/convergence.sh [--no-apt] [OPTIONS OF benchmarks/convergence.py]
#
# Trains the same model on the same text by one process and by four peers with the same total batch, once for every mode of
# averaging and every codec, and prints a table of the final losses. Exit code 1 when four peers end up worse than the one
# process by more than the tolerance. Installs what is missing and builds first.
#   --epochs N           optimizer steps of every run (default 60)
#   --peers N            (default 4)
#   --only NAME...       these cases only; --list names them
#   --tolerance SHARE    of the one process's loss (default 0.05; PowerSGD of rank 4 and top_k have two to four times that)
#   --text PATH          what to train on (default: the King James Bible of Debian's package bible-kjv)
#   --device DEVICE      where the trainers compute (default cpu; cuda and cuda:N in a build with LibTorch's CUDA half)
#   --output FILE        write the table there, too
#   --no-apt             leave Debian's packages alone

. "$(dirname "$0")/lib.sh"

install_options=() options=()
for option in "$@"; do
  case $option in
    -h | --help) usage; exit ;;
    --no-apt) install_options+=(--no-apt) ;;
    *) options+=("$option") ;;
  esac
done

tools/install-deps.sh "${install_options[@]}"
if [[ " $* " != *' --text'[\ =]* ]]; then
  need bible
  mkdir -p build/convergence
  bible -f 'gen1:1-rev22:21' >build/convergence/bible.txt
  options+=(--text "$root/build/convergence/bible.txt")
fi
configure release -DCOHIVE_WERROR=ON -DCOHIVE_WITH_TORCH=ON -DCOHIVE_TOOLS=ON # as test.sh: one build serves both
build release cohive-bootstrap cohive-train
cd "$called_in" # Relative paths among the options begin there.
exec python3 "$root/benchmarks/convergence.py" "${options[@]}"
