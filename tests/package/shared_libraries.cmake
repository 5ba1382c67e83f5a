# Run by `cmake -P`: see CMakeLists.txt beside it. Builds cohive as shared libraries and uses them.
cmake_minimum_required(VERSION 3.24)
set(package_tests "${CMAKE_CURRENT_LIST_DIR}")
set(prefix "${WORK_DIR}/prefix")
set(CXX_FLAGS)
include("${package_tests}/common.cmake")
file(REMOVE_RECURSE "${WORK_DIR}")

step("${CMAKE_COMMAND}" -S "${SOURCE_DIR}" -B "${WORK_DIR}/build" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
     -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DCOHIVE_TESTS=OFF -DCOHIVE_TOOLS=OFF -DCOHIVE_WITH_TORCH=OFF
     -DCOHIVE_WITH_CUDA=OFF ${faster_builds})
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/build" --target cohive_core)  # the rest is built when it is installed
step("${CMAKE_COMMAND}" --install "${WORK_DIR}/build" --prefix "${prefix}")

# Each carries the version that programs ask for, and shows cohive and what cmake/cohive.map says of Boost, nothing else.
file(GLOB_RECURSE libraries "${prefix}/libcohive_*.so")
if(NOT libraries)
  message(FATAL_ERROR "no shared library was installed")
endif()
file(GLOB_RECURSE archives "${prefix}/*.a")
if(archives)
  message(FATAL_ERROR "archives were installed, too: ${archives}")
endif()
foreach(library IN LISTS libraries)
  get_filename_component(name "${library}" NAME)
  execute_process(COMMAND readelf -d "${library}" OUTPUT_VARIABLE facts COMMAND_ERROR_IS_FATAL ANY)
  if(NOT facts MATCHES "SONAME.*\\[${name}\\.[0-9]+\\.[0-9]+\\]")
    message(FATAL_ERROR "${name} has no SONAME of major and minor version:\n${facts}")
  endif()
  execute_process(COMMAND nm -D --defined-only --format=posix "${library}" OUTPUT_VARIABLE names COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "\n$" "" names "${names}")
  string(REPLACE "\n" ";" names "${names}")
  list(FILTER names EXCLUDE REGEX "^_Z[A-Za-z0-9_]*N?K?6cohive|^_ZN6google8protobuf[A-Za-z0-9_]*IN6cohive5proto|^_Z[A-Z]*N5boost4asio|^boost_asio_signal_handler ")
  if(names)
    message(FATAL_ERROR "${name} shows what is not cohive's: ${names}")
  endif()
endforeach()

foreach(module net averaging train)
  build_and_run("${package_tests}/${module}")
  build_by_pkg_config(${module})
endforeach()
build_and_run("${package_tests}/asio")
build_and_run("${package_tests}/own_proto")
