# Run by `cmake -P`: see CMakeLists.txt beside it.
cmake_minimum_required(VERSION 3.24)
set(package_tests "${CMAKE_CURRENT_LIST_DIR}")
set(prefix "${WORK_DIR}/prefix")

function(step)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# configure(PROJECT OPTION...): leaves the exit code in `result` and what CMake said in `output`. No standard of C++ is
# set, and the paths of LibTorch and CUDA are told as README.md says.
macro(configure project)
  get_filename_component(name "${project}" NAME)
  set(build "${WORK_DIR}/${name}")
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${project}" -B "${build}" -G "${GENERATOR}"
      "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF ${ARGN}
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

# refused(WORDS CODE): a project of these lines of CMake is told in one sentence, which holds the words, what is missing.
function(refused words code)
  file(WRITE "${WORK_DIR}/refused_project/CMakeLists.txt"
       "cmake_minimum_required(VERSION 3.24)\nproject(refused LANGUAGES CXX)\n${code}\n")
  file(REMOVE_RECURSE "${WORK_DIR}/refused_project/build")
  configure("${WORK_DIR}/refused_project")
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(result EQUAL 0 OR NOT output MATCHES "${words}")
    message(FATAL_ERROR "expected '${words}', but CMake said: ${output}")
  endif()
  file(REMOVE_RECURSE "${build}")
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
step("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}")

# The service starts the program that was installed, with options that it knows.
file(STRINGS "${prefix}/lib/systemd/system/cohive-bootstrap.service" command REGEX "^(ExecStart|Environment)=")
string(REGEX MATCH "ExecStart=([^ ]+)" program "${command}")
execute_process(COMMAND "${CMAKE_MATCH_1}" --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "--[a-z-]+" flags "${command}")
foreach(flag IN LISTS flags)
  if(NOT help MATCHES "\n *${flag} ")
    message(FATAL_ERROR "cohive-bootstrap.service uses ${flag}, which cohive-bootstrap does not know")
  endif()
endforeach()

# The package can be moved and taken to other machines: its files name no place of this one.
file(GLOB_RECURSE package_files "${prefix}/cohive*.cmake")
foreach(file IN LISTS package_files)
  file(READ "${file}" content)
  string(REGEX MATCHALL "[\";](${SOURCE_DIR}|/(usr|root|home|opt|tmp)/)[^\";]*" paths "${content}")
  if(paths)
    message(FATAL_ERROR "${file} names a place of this machine: ${paths}")
  endif()
endforeach()

set(torch_option)
if(LIBTORCH_DIR)
  get_filename_component(site_packages "${LIBTORCH_DIR}" DIRECTORY)
  set(torch_option "-DLIBTORCH_WHEEL=${site_packages}")
endif()
set(cuda_option)
if(CUDA_LIBRARY)
  get_filename_component(toolkit "${CUDA_LIBRARY}" DIRECTORY)
  set(cuda_option "-DCudaRuntime_ROOT=${toolkit}/..")
endif()

foreach(component IN LISTS COMPONENTS)
  set(option ${${component}_option})
  build_and_run("${package_tests}/${component}" ${option})
endforeach()
build_and_run("${package_tests}/asio")
build_and_run("${SOURCE_DIR}/examples" ${torch_option})

# Without CMake: what pkg-config says is enough for the compiler.
find_program(PKG_CONFIG pkg-config REQUIRED)
file(GLOB_RECURSE pc "${prefix}/cohive-net.pc")
get_filename_component(pc_dir "${pc}" DIRECTORY)
foreach(module net averaging train)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E env "PKG_CONFIG_PATH=${pc_dir}" "${PKG_CONFIG}" --cflags --libs cohive-${module}
    OUTPUT_VARIABLE words OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(words UNIX_COMMAND "${words} ${CXX_FLAGS}")
  step("${CXX_COMPILER}" "${package_tests}/${module}/main.cpp" ${words} -o "${WORK_DIR}/by_pkg_config_${module}")
  step("${WORK_DIR}/by_pkg_config_${module}")
endforeach()

# As a part of another project: that project's targets find what cohive links.
configure("${package_tests}/subproject" "-DCOHIVE_SOURCE_DIR=${SOURCE_DIR}" -DCOHIVE_WITH_TORCH=OFF -DCOHIVE_WITH_CUDA=OFF)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "cohive cannot be a part of another project:\n${output}")
endif()

refused("built without the component nonsense; it has net" "find_package(cohive REQUIRED COMPONENTS net nonsense)")
refused("cohive::net needs OpenSSL 3, which was not found"
        "set(CMAKE_DISABLE_FIND_PACKAGE_OpenSSL ON)\nfind_package(cohive REQUIRED COMPONENTS averaging)")
if(torch IN_LIST COMPONENTS)
  refused("cohive::torch needs LibTorch .*: point -DLIBTORCH_WHEEL at" "find_package(cohive REQUIRED COMPONENTS torch)")
  refused("optional: net 1 torch 0" "find_package(cohive REQUIRED COMPONENTS net OPTIONAL_COMPONENTS torch)
if(cohive_net_FOUND AND TARGET cohive::net AND NOT cohive_torch_FOUND AND NOT TARGET cohive::torch)
  message(FATAL_ERROR \"optional: net 1 torch 0\")
endif()")
endif()
