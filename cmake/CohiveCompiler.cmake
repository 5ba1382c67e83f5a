# The compiler and its flags. clang-19 is the reference; GCC before 14 miscompiles coroutines
# (co_await in conditions, capturing lambdas and aggregates inside co_await expressions), so it is refused.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  message(FATAL_ERROR "GCC ${CMAKE_CXX_COMPILER_VERSION} miscompiles C++20 coroutines. Use clang-19 "
                      "(-DCMAKE_CXX_COMPILER=clang++-19) or GCC 14 or newer.")
endif()

set(CMAKE_CXX_EXTENSIONS OFF)  # C++20 itself travels with the targets
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(COHIVE_CF_PROTECTION OFF)  # of x86-64's indirect branches and returns
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(COHIVE_CF_PROTECTION ON)
endif()
add_library(cohive_flags INTERFACE)
target_compile_features(cohive_flags INTERFACE cxx_std_20)
# A designated initializer that leaves fields at their defaults is how option structs are meant to be used. Where CMake joins
# sources, GCC takes anonymous namespaces for those of headers. GCC 14 sees a copy of a vector of one element overrun it,
# and the value of an empty optional moved.
target_compile_options(cohive_flags INTERFACE -Wall -Wextra
  $<$<CXX_COMPILER_ID:Clang>:-Wno-missing-designated-field-initializers>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-missing-field-initializers;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-maybe-uninitialized>
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-subobject-linkage> $<$<BOOL:${COHIVE_WERROR}>:-Werror>)

# What makes a defect harder to use, at no cost that can be measured. Sanitizers have checks of their own.
option(COHIVE_HARDEN "build with stack protector, checked C functions, control-flow protection, full RELRO and PIE" ON)
if(COHIVE_HARDEN AND NOT COHIVE_SANITIZE AND NOT COHIVE_FUZZ)
  target_compile_options(cohive_flags INTERFACE -fstack-protector-strong
    $<$<AND:$<NOT:$<CONFIG:Debug>>,$<NOT:$<BOOL:$<TARGET_PROPERTY:COHIVE_UNOPTIMISED>>>,$<COMPILE_LANGUAGE:CXX>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>
    $<$<BOOL:${COHIVE_CF_PROTECTION}>:-fcf-protection=full>)
  include(CheckPIESupported)
  check_pie_supported(LANGUAGES CXX)
  target_link_options(cohive_flags INTERFACE
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:LINKER:-z,relro,-z,now,-z,noexecstack>)
endif()

if(COHIVE_STATIC)
  # A program takes of a library the functions that it uses: the monitor a few of those that trainers have.
  add_compile_options(-ffunction-sections -fdata-sections)
  # Some package files name shared libraries that nothing uses; CMake asks for -pie, too.
  add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-static-pie> LINKER:--as-needed,--gc-sections -Wno-unused-command-line-argument)
endif()

if(COHIVE_SELF_CONTAINED)
  add_link_options(LINKER:--as-needed -Wno-unused-command-line-argument)
  if(NOT LIBTORCH_CUDA)  # LibTorch brings the standard library
    add_link_options(-static-libgcc -static-libstdc++)
  endif()
endif()

if(COHIVE_SANITIZE)
  add_compile_options(-fsanitize=${COHIVE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  # A null pointer is found by itself, and a wrong type by the address; compiling these checks takes a quarter of the time.
  if(COHIVE_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize=null,vptr,object-size)
  endif()
  add_link_options(-fsanitize=${COHIVE_SANITIZE})
endif()

if(COHIVE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "COHIVE_FUZZ needs clang: libFuzzer is part of it")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()
