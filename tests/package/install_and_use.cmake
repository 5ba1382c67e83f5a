# Run by `cmake -P`: see CMakeLists.txt beside it.
cmake_minimum_required(VERSION 3.24)
set(package_tests "${CMAKE_CURRENT_LIST_DIR}")
set(prefix "${WORK_DIR}/prefix")

include("${package_tests}/common.cmake")

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

# The services start the programs that were installed, with options that they know.
if(LIBTORCH_DIR)
  step("${prefix}/bin/cohive-get-libtorch" "${LIBTORCH_DIR}")
endif()
file(GLOB units "${prefix}/lib/systemd/system/*.service")
foreach(unit IN LISTS units)
  file(STRINGS "${unit}" command REGEX "^(ExecStart|Environment)=")
  string(REGEX MATCH "ExecStart=([^ ]+)" program "${command}")
  execute_process(COMMAND "${CMAKE_COMMAND}" -E env --unset=LD_LIBRARY_PATH "${CMAKE_MATCH_1}" --help
    OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "--[a-z-]+" flags "${command}")
  foreach(flag IN LISTS flags)
    if(NOT help MATCHES "\n *${flag} ")
      message(FATAL_ERROR "${unit} uses ${flag}, which the program does not know")
    endif()
  endforeach()
endforeach()
list(LENGTH units count)
if(NOT count EQUAL 1 AND NOT (LIBTORCH_DIR AND count EQUAL 2))
  message(FATAL_ERROR "these units were installed: ${units}")
endif()

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
build_and_run("${package_tests}/own_proto")
if(EXISTS "${LIBTORCH_DIR}/include/fmt/base.h")  # LibTorch brings a release that is years ahead of Debian's
  file(COPY "${LIBTORCH_DIR}/include/fmt" DESTINATION "${WORK_DIR}/newer_fmt_headers")
  build_and_run("${package_tests}/newer_fmt" "-DFMT_HEADERS=${WORK_DIR}/newer_fmt_headers")
else()
  message(STATUS "skipped: there is no LibTorch, whose headers of fmt a program uses beside cohive's")
endif()
build_and_run("${SOURCE_DIR}/examples" ${torch_option})

foreach(module net averaging train testing)
  build_by_pkg_config(${module})
endforeach()

# As a part of another project, whose targets find what cohive links.
build_and_run("${package_tests}/subproject" "-DCOHIVE_SOURCE_DIR=${SOURCE_DIR}" -DCOHIVE_WITH_TORCH=OFF -DCOHIVE_WITH_CUDA=OFF
              ${faster_builds})

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
