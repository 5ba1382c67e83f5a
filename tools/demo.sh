#!/usr/bin/env bash
# tools/demo.sh [--help]
#
# Installs what is missing and builds the programs. When nothing has changed since the last time, that takes a second.

. "$(dirname "$0")/lib.sh"

case ${1:-} in
  -h | --help)
    usage "$0"
    exit
    ;;
esac

tools/install-deps.sh
configure release -DCOHIVE_WERROR=ON -DCOHIVE_WITH_TORCH=ON -DCOHIVE_TOOLS=ON # as test.sh: one build serves both
build release cohive-bootstrap cohive-train cohive-monitor
