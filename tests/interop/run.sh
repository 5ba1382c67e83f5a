#!/usr/bin/env bash
# tests/interop/run.sh TEST.py [PYTEST OPTIONS]
#
# Runs one test file, of this folder or of the one in its path, in the environment of Python hivemind. Exit code 77
# means skipped: the environment or a program is missing.
# Environment: COHIVE_BIN_DIR, the folder of the built programs; default build/release/bin.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd -P)"
python="$root/.deps/interop/bin/python"
export COHIVE_BIN_DIR="${COHIVE_BIN_DIR:-$root/build/release/bin}"

if [[ ! -f $root/.deps/interop/.stamp ]]; then
  echo "skipped: no Python hivemind in .deps/interop (tools/install-deps.sh --interop)"
  exit 77
fi
cd "$root/tests/interop"
cd "$(dirname "$1")"
exec "$python" -m pytest -q -rs -p no:cacheprovider -o asyncio_mode=auto \
  -o asyncio_default_fixture_loop_scope=function --timeout=240 "$(basename "$1")" "${@:2}"
