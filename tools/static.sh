#!/usr/bin/env bash
# tools/static.sh [--no-apt] [--help]
#
# Builds the programs that need no LibTorch for any Linux of this processor: they need no library, not even libc. Tries them in
# a root directory that holds nothing else, and packs them into build/static/cohive-VERSION-linux-PROCESSOR.tar.gz.
# Options:
#   --no-apt    leave Debian's packages alone

. "$(dirname "$0")/lib.sh"

install_options=(--no-torch --static)
take_no_apt "$@"

programs=(cohive-bootstrap cohive-dht cohive-monitor cohive-bench)
tools/install-deps.sh "${install_options[@]}"
configure static
build static "${programs[@]}"
say 'trying the programs in an empty root'
quietly build/static/test.log python3 tests/package/test_static.py build/static/bin || die 'they do not work there (see above)'

version=$(build/static/bin/cohive-bootstrap --version | cut -d' ' -f2)
name="cohive-$version-linux-$(uname -m)"
folder="build/static/$name"
rm -rf "$folder"
mkdir -p "$folder/data" # the container's, to begin with
for program in "${programs[@]}"; do strip -o "$folder/$program" "build/static/bin/$program"; done
cp LICENSE CHANGELOG.md docs/bootstrap-node.md packaging/container/Containerfile "$folder"
tar -C build/static --owner=0 --group=0 -czf "$folder.tar.gz" "$name"
say "packed $folder.tar.gz ($(du -h "$folder.tar.gz" | cut -f1))"
