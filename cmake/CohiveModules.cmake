# cohive_module(NAME DEPENDS libs... [PRIVATE libs...]): src/NAME/*.cpp becomes the static library cohive_NAME, with
#                                 include/ public; PRIVATE names what its public headers do not show.
# cohive_bundle(NAME modules...): the public target cohive::NAME.
# cohive_proto_library():         proto/*.proto becomes cohive_proto.
# Each adds its target to the list COHIVE_TARGETS, which CohiveInstall installs.
define_property(GLOBAL PROPERTY COHIVE_TARGETS)

function(cohive_module name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/${name}/*.cpp")
  if(sources)
    add_library(cohive_${name} STATIC ${sources})
    target_include_directories(cohive_${name} PUBLIC "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>"
                                              PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src")
    target_link_libraries(cohive_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:cohive_flags>)
  else()
    add_library(cohive_${name} INTERFACE)
    target_include_directories(cohive_${name} INTERFACE "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>")
    target_link_libraries(cohive_${name} INTERFACE ${ARG_DEPENDS})
  endif()
  set_property(GLOBAL APPEND PROPERTY COHIVE_TARGETS cohive_${name})
endfunction()

function(cohive_bundle name)
  list(TRANSFORM ARGN PREPEND cohive_ OUTPUT_VARIABLE modules)
  add_library(cohive_bundle_${name} INTERFACE)
  target_link_libraries(cohive_bundle_${name} INTERFACE ${modules})
  set_target_properties(cohive_bundle_${name} PROPERTIES EXPORT_NAME ${name})
  add_library(cohive::${name} ALIAS cohive_bundle_${name})
  set_property(GLOBAL APPEND PROPERTY COHIVE_TARGETS cohive_bundle_${name})
endfunction()

function(cohive_proto_library)
  file(GLOB protos CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/proto/*.proto")
  add_library(cohive_proto STATIC ${protos})
  set(out "${CMAKE_CURRENT_BINARY_DIR}/gen")
  file(MAKE_DIRECTORY "${out}/cohive/proto")
  foreach(proto IN LISTS protos)
    get_filename_component(stem "${proto}" NAME_WE)
    set(generated "${out}/cohive/proto/${stem}.pb.cc" "${out}/cohive/proto/${stem}.pb.h")
    add_custom_command(OUTPUT ${generated}
      COMMAND protobuf::protoc --cpp_out=${out}/cohive/proto -I${CMAKE_CURRENT_SOURCE_DIR}/proto ${proto}
      DEPENDS "${proto}" COMMENT "protoc ${stem}.proto" VERBATIM)
    target_sources(cohive_proto PRIVATE ${generated})
  endforeach()
  # "cohive/proto/x.pb.h" for our sources, "x.pb.h" for what protoc writes between the files. Public headers use neither.
  target_include_directories(cohive_proto SYSTEM PUBLIC "$<BUILD_INTERFACE:${out}>"
                                                        "$<BUILD_INTERFACE:${out}/cohive/proto>")
  target_link_libraries(cohive_proto PUBLIC protobuf::libprotobuf)
  set_property(GLOBAL APPEND PROPERTY COHIVE_TARGETS cohive_proto)
endfunction()
