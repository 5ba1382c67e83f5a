# Everything cohive links, found once. tools/install-deps.sh installs it on Debian 12 and 13.
if(POLICY CMP0167)  # Boost brings its own package file, and later releases of CMake have no other
  cmake_policy(SET CMP0167 NEW)
endif()
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL 3 REQUIRED)
find_package(Protobuf REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
if(COHIVE_TOOLS)
  find_package(CLI11 REQUIRED)
endif()
find_package(PkgConfig REQUIRED)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)

# A faster AES-GCM for x86-64; without it (-DCOHIVE_IPSEC_MB=OFF) OpenSSL's is used. Its development package is an archive
# and a header only.
find_library(COHIVE_IPSEC_MB IPSec_MB)
if(COHIVE_IPSEC_MB)
  message(STATUS "cohive: AES-GCM by ${COHIVE_IPSEC_MB}")
else()
  set(COHIVE_IPSEC_MB "")
endif()

# cohive_wanted(OUT OPTION): what an AUTO/ON/OFF option says, as one of these three words.
function(cohive_wanted out option)
  set(value "${${option}}")
  string(TOUPPER "${value}" word)
  if(word STREQUAL "AUTO")
    set(${out} AUTO PARENT_SCOPE)
  elseif(value)
    set(${out} ON PARENT_SCOPE)
  else()
    set(${out} OFF PARENT_SCOPE)
  endif()
endfunction()

set(COHIVE_HAVE_TORCH FALSE)
cohive_wanted(wanted COHIVE_WITH_TORCH)
if(NOT wanted STREQUAL "OFF")
  find_package(LibTorch 2.0 QUIET)
  set(COHIVE_HAVE_TORCH ${LibTorch_FOUND})
  if(COHIVE_HAVE_TORCH)
    message(STATUS "cohive: LibTorch ${LibTorch_VERSION} in ${LibTorch_ROOT_DIR}")
  elseif(wanted STREQUAL "ON")
    message(FATAL_ERROR "LibTorch 2.x was not found. Run tools/install-deps.sh, or point CMAKE_PREFIX_PATH at a LibTorch "
                        "or LIBTORCH_WHEEL at the directory that holds torch/ of a PyPI wheel.")
  else()
    message(STATUS "cohive: no LibTorch, so no cohive::torch and no trainer (tools/install-deps.sh gets it)")
  endif()
endif()

# The compiler, and beside it the headers and the static runtime. Sanitizers and nvcc do not go together.
set(COHIVE_HAVE_CUDA FALSE)
cohive_wanted(wanted COHIVE_WITH_CUDA)
if(wanted STREQUAL "AUTO" AND (COHIVE_SANITIZE OR COHIVE_FUZZ))
  set(wanted OFF)
endif()
if(NOT wanted STREQUAL "OFF")
  get_filename_component(cudacxx_dir "$ENV{CUDACXX}" DIRECTORY)
  set(wheels_dir "${PROJECT_SOURCE_DIR}/.deps/cuda/nvidia/cu13")  # by tools/install-deps.sh --cuda
  find_program(COHIVE_NVCC nvcc HINTS "${cudacxx_dir}" PATHS ENV CUDA_PATH /usr/local/cuda "${wheels_dir}"
               PATH_SUFFIXES bin)
  find_program(COHIVE_CUDA_HOST_COMPILER NAMES g++ DOC "what nvcc compiles the host's side with")
  if(COHIVE_NVCC AND COHIVE_CUDA_HOST_COMPILER)
    get_filename_component(toolkit_dir "${COHIVE_NVCC}" REALPATH)
    get_filename_component(toolkit_dir "${toolkit_dir}" DIRECTORY)
    get_filename_component(toolkit_dir "${toolkit_dir}" DIRECTORY)
    find_path(COHIVE_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS "${toolkit_dir}" PATH_SUFFIXES include
              targets/x86_64-linux/include)
    find_library(COHIVE_CUDART_STATIC cudart_static HINTS "${toolkit_dir}" PATH_SUFFIXES lib64 lib
                 targets/x86_64-linux/lib)
  endif()
  if(COHIVE_NVCC AND COHIVE_CUDA_HOST_COMPILER AND COHIVE_CUDA_INCLUDE_DIR AND COHIVE_CUDART_STATIC)
    set(COHIVE_HAVE_CUDA TRUE)
    message(STATUS "cohive: CUDA compiler ${COHIVE_NVCC}")
  elseif(wanted STREQUAL "ON")
    message(FATAL_ERROR "COHIVE_WITH_CUDA is ON, but nvcc, g++, cuda_runtime_api.h or libcudart_static.a was not found. Run "
                        "tools/install-deps.sh --cuda, put nvcc in PATH, name it in CUDACXX, or build with "
                        "-DCOHIVE_WITH_CUDA=OFF.")
  endif()
endif()
