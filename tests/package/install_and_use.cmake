# Run by `cmake -P`: see CMakeLists.txt beside it.
function(step)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
step("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")

# The service starts the program that was installed, with options that it knows.
file(STRINGS "${WORK_DIR}/prefix/lib/systemd/system/cohive-bootstrap.service" command REGEX "^(ExecStart|Environment)=")
string(REGEX MATCH "ExecStart=([^ ]+)" program "${command}")
execute_process(COMMAND "${CMAKE_MATCH_1}" --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "--[a-z-]+" flags "${command}")
foreach(flag IN LISTS flags)
  if(NOT help MATCHES "\n *${flag} ")
    message(FATAL_ERROR "cohive-bootstrap.service uses ${flag}, which cohive-bootstrap does not know")
  endif()
endforeach()

step("${CMAKE_COMMAND}" -S "${CONSUMER_DIR}" -B "${WORK_DIR}/build" -G "${GENERATOR}"
     "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
     -DCMAKE_BUILD_TYPE=Release -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
step("${CMAKE_CTEST_COMMAND}" --test-dir "${WORK_DIR}/build" --output-on-failure)
