# What the scripts beside it share, which are run by `cmake -P`. WORK_DIR, prefix, GENERATOR, CXX_COMPILER and CXX_FLAGS are
# set.
function(step)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Sources are compiled only once on this machine; those of cohive itself are joined by the dozen.
find_program(CCACHE ccache)
set(only_once)
if(CCACHE)
  set(only_once "-DCMAKE_C_COMPILER_LAUNCHER=${CCACHE}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE}")
endif()
set(faster_builds ${only_once} -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=12)

# configure(PROJECT OPTION...): leaves the exit code in `result` and what CMake said in `output`. No standard of C++ is
# set, and the paths of LibTorch and CUDA are told as README.md says. Nothing is optimised: projects have to be found,
# linked and run, and compiling is what takes the time.
macro(configure project)
  get_filename_component(name "${project}" NAME)
  set(build "${WORK_DIR}/${name}")
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${project}" -B "${build}" -G "${GENERATOR}"
      "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
      -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O0 -DNDEBUG" "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -DNDEBUG" ${only_once}
      -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
endmacro()

# build_and_run(PROJECT OPTION...)
macro(build_and_run project)
  configure("${project}" ${ARGN})
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${project} was not configured:\n${output}")
  endif()
  step("${CMAKE_COMMAND}" --build "${build}")
  step("${CMAKE_CTEST_COMMAND}" --test-dir "${build}" --output-on-failure)
endmacro()

# build_by_pkg_config(MODULE): without CMake, what pkg-config says is enough for the compiler.
function(build_by_pkg_config module)
  find_program(PKG_CONFIG pkg-config REQUIRED)
  file(GLOB_RECURSE pc "${prefix}/cohive-net.pc")
  get_filename_component(pc_dir "${pc}" DIRECTORY)
  get_filename_component(library_dir "${pc_dir}" DIRECTORY)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E env "PKG_CONFIG_PATH=${pc_dir}" "${PKG_CONFIG}" --cflags --libs cohive-${module}
    OUTPUT_VARIABLE words OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(words UNIX_COMMAND "${words} ${CXX_FLAGS}")
  step("${CXX_COMPILER}" "${package_tests}/${module}/main.cpp" ${words} -o "${WORK_DIR}/by_pkg_config_${module}")
  step("${CMAKE_COMMAND}" -E env "LD_LIBRARY_PATH=${library_dir}" "${WORK_DIR}/by_pkg_config_${module}")
endfunction()
