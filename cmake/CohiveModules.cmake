# What cohive is made of. A component is what find_package(cohive COMPONENTS ...) asks for; a module is a library
# src/<name>/*.cpp with its public headers include/cohive/<name>. CohiveInstall installs them all. Libraries are archives,
# or with -DBUILD_SHARED_LIBS=ON shared.
#
# cohive_component(NAME [NEEDS COMPONENT...] [PACKAGES CALL...])
#   Comes after the components it needs. A CALL is what a user's find_package() gets, such as "OpenSSL 3".
# cohive_module(NAME COMPONENT NAME [TARGET NAME] [DEPENDS TARGET...] [PRIVATE TARGET...])
#   Makes the target cohive_<name>. Users see it as cohive::<TARGET>, by default cohive::<name>.
# cohive_bundle(NAME MODULE...)
#   Makes cohive::<name>, which is all these modules, in the component of the same name.
# cohive_library(TARGET)
#   What other programs see of a library: nothing of an archive whose program is itself a library; of a shared one the
#   names that cohive.map lists.
# cohive_in_component(COMPONENT TARGET EXPORTED_NAME)
#   The same for a target that was made otherwise.
# cohive_proto_library(COMPONENT)
#   proto/*.proto becomes cohive_proto.
# cohive_c_library()
#   libcohive.so of src/c, which shows the names of cohive.h alone.
# cohive_of_found(OUT "PACKAGE WORD"...)
#   The words of those optional packages that were found.
# cohive_embed_page(TARGET FOLDER)
#   Makes the page in FOLDER part of the target: see EmbedPage.cmake.
# cohive_revision(OUT)
#   The commit of this source tree, as git describes it when CMake runs; "unknown" without git.
define_property(GLOBAL PROPERTY COHIVE_COMPONENTS)
define_property(GLOBAL PROPERTY COHIVE_MODULES)

function(cohive_component name)
  cmake_parse_arguments(ARG "" "" "NEEDS;PACKAGES" ${ARGN})
  set_property(GLOBAL APPEND PROPERTY COHIVE_COMPONENTS ${name})
  set_property(GLOBAL PROPERTY COHIVE_NEEDS_${name} ${ARG_NEEDS})
  set_property(GLOBAL PROPERTY COHIVE_PACKAGES_${name} ${ARG_PACKAGES})
endfunction()

function(cohive_library target)
  if(NOT BUILD_SHARED_LIBS)
    set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    return()
  endif()
  set(map "${PROJECT_SOURCE_DIR}/cmake/cohive.map")
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} INSTALL_RPATH "$ORIGIN" LINK_DEPENDS "${map}"
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})  # before 1.0 a minor version may change all
  target_link_options(${target} PRIVATE "LINKER:--version-script=${map}")
endfunction()

function(cohive_in_component component target exported_name)
  get_property(components GLOBAL PROPERTY COHIVE_COMPONENTS)
  if(NOT component IN_LIST components)
    message(FATAL_ERROR "${target} belongs to '${component}', which is no component")
  endif()
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${exported_name})
  add_library(cohive::${exported_name} ALIAS ${target})
  set_property(GLOBAL APPEND PROPERTY COHIVE_TARGETS_${component} ${target})
endfunction()

function(cohive_module name)
  cmake_parse_arguments(ARG "" "COMPONENT;TARGET" "DEPENDS;PRIVATE" ${ARGN})
  if(NOT ARG_TARGET)
    set(ARG_TARGET ${name})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/${name}/*.cpp")
  # Where CMake joins sources (CMAKE_UNITY_BUILD), kernels for one kind of processor stay alone, as do macros of ipsec-mb.
  set(alone ${sources})
  list(FILTER alone INCLUDE REGEX "/(kernels[^/]*|fast_gcm)\\.cpp$")
  set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_library(cohive_${name} ${sources})
  cohive_library(cohive_${name})
  target_compile_features(cohive_${name} PUBLIC cxx_std_20)
  target_include_directories(cohive_${name} PUBLIC "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>"
                                            PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src")
  target_link_libraries(cohive_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:cohive_flags>)
  cohive_in_component(${ARG_COMPONENT} cohive_${name} ${ARG_TARGET})
  set_property(GLOBAL APPEND PROPERTY COHIVE_MODULES ${name})
endfunction()

function(cohive_bundle name)
  list(TRANSFORM ARGN PREPEND cohive_ OUTPUT_VARIABLE modules)
  add_library(cohive_bundle_${name} INTERFACE)
  target_link_libraries(cohive_bundle_${name} INTERFACE ${modules})
  cohive_in_component(${name} cohive_bundle_${name} ${name})
endfunction()

function(cohive_proto_library component)
  file(GLOB protos CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/proto/*.proto")
  add_library(cohive_proto ${protos})
  set(out "${CMAKE_CURRENT_BINARY_DIR}/gen")
  file(MAKE_DIRECTORY "${out}/cohive/proto")
  foreach(proto IN LISTS protos)
    get_filename_component(stem "${proto}" NAME_WE)
    set(generated "${out}/cohive/proto/${stem}.pb.cc" "${out}/cohive/proto/${stem}.pb.h")
    add_custom_command(OUTPUT ${generated}
      COMMAND protobuf::protoc --cpp_out=${out} -Icohive/proto=${CMAKE_CURRENT_SOURCE_DIR}/proto ${proto}
      DEPENDS "${proto}" COMMENT "protoc ${stem}.proto" VERBATIM)
    target_sources(cohive_proto PRIVATE ${generated})
  endforeach()
  target_compile_features(cohive_proto PUBLIC cxx_std_20)
  set_target_properties(cohive_proto PROPERTIES UNITY_BUILD OFF)  # generated files share names
  # protobuf-lite is not instrumented, so what is generated for it need not be either, and is compiled faster. But
  # fuzzers go by its branches, and ThreadSanitizer by what each thread reads and writes.
  if(COHIVE_SANITIZE MATCHES "address" AND NOT COHIVE_FUZZ)
    target_compile_options(cohive_proto PRIVATE -fno-sanitize=all)
  endif()
  target_include_directories(cohive_proto SYSTEM PUBLIC "$<BUILD_INTERFACE:${out}>")  # public headers do not use it
  # Without descriptors, which one process can hold only once: its own auth.proto, or a second cohive, may be beside ours.
  target_link_libraries(cohive_proto PUBLIC protobuf::libprotobuf-lite)
  cohive_library(cohive_proto)
  cohive_in_component(${component} cohive_proto proto)
endfunction()

function(cohive_c_library)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/c/*.cpp")
  set(map "${CMAKE_CURRENT_SOURCE_DIR}/src/c/cohive.map")
  add_library(cohive_c SHARED ${sources})
  if(COHIVE_STATIC)  # with archives of all but the C library, and that may be older
    target_sources(cohive_c PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src/c/older_glibc.c")
    target_link_options(cohive_c PRIVATE -static-libstdc++)
  endif()
  set_target_properties(cohive_c PROPERTIES OUTPUT_NAME cohive LINK_DEPENDS "${map}" CXX_VISIBILITY_PRESET hidden
                        VISIBILITY_INLINES_HIDDEN ON VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(cohive_c PUBLIC "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>"
                                      PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src")
  target_link_libraries(cohive_c PRIVATE $<BUILD_INTERFACE:cohive_train> OpenSSL::Crypto nlohmann_json::nlohmann_json
                                         $<BUILD_INTERFACE:cohive_flags>)
  if(COHIVE_HAVE_CUDA)  # models on a GPU; without a driver it is as without this
    target_link_libraries(cohive_c PRIVATE $<BUILD_INTERFACE:cohive_cuda>)
    target_compile_definitions(cohive_c PRIVATE COHIVE_C_CUDA)
  endif()
  target_link_options(cohive_c PRIVATE "LINKER:--version-script=${map}" LINKER:--gc-sections)
  cohive_in_component(c cohive_c c)
endfunction()

function(cohive_of_found out)
  set(words)
  foreach(pair IN LISTS ARGN)
    string(REPLACE " " ";" pair "${pair}")
    list(GET pair 0 package)
    list(GET pair 1 word)
    if(package IN_LIST COHIVE_PORT_MAPPING_PACKAGES OR package STREQUAL COHIVE_IPSEC_MB_PACKAGE)
      list(APPEND words ${word})
    endif()
  endforeach()
  set(${out} "${words}" PARENT_SCOPE)
endfunction()

function(cohive_embed_page target folder)
  set(page "${CMAKE_CURRENT_SOURCE_DIR}/${folder}")
  set(script "${CMAKE_CURRENT_SOURCE_DIR}/cmake/EmbedPage.cmake")
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/gen/cohive/page_parts.cpp")
  add_custom_command(OUTPUT "${generated}"
    COMMAND "${CMAKE_COMMAND}" -DPAGE=${page} -DOUT=${generated} -P "${script}"
    DEPENDS "${script}" "${page}/body.html" "${page}/page.css" "${page}/draw.js" "${page}/swarm.js" "${page}/page.js" COMMENT "page" VERBATIM)
  target_sources(${target} PRIVATE "${generated}")
endfunction()

function(cohive_revision out)
  set(described "unknown")
  find_package(Git QUIET)
  if(Git_FOUND)
    execute_process(COMMAND "${GIT_EXECUTABLE}" describe --always --dirty WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
                    OUTPUT_VARIABLE text OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed AND text)
      set(described "${text}")
    endif()
  endif()
  set(${out} "${described}" PARENT_SCOPE)
endfunction()
