# cohive_module(NAME DEPENDS libs...): src/NAME/*.cpp becomes the static library cohive_NAME, with include/ public.
# cohive_bundle(NAME modules...):      the public target cohive::NAME.
# cohive_proto_library():              proto/*.proto becomes cohive_proto.
function(cohive_module name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/${name}/*.cpp")
  if(sources)
    add_library(cohive_${name} STATIC ${sources})
    target_include_directories(cohive_${name} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}/include"
                                              PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src")
    target_link_libraries(cohive_${name} PUBLIC ${ARG_DEPENDS} PRIVATE cohive_flags)
  else()
    add_library(cohive_${name} INTERFACE)
    target_include_directories(cohive_${name} INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}/include")
    target_link_libraries(cohive_${name} INTERFACE ${ARG_DEPENDS})
  endif()
  if(name STREQUAL "core" AND sources)
    target_link_libraries(cohive_core PUBLIC Threads::Threads fmt::fmt protobuf::libprotobuf prometheus-cpp::core
                                      PRIVATE Boost::headers OpenSSL::Crypto PkgConfig::sodium spdlog::spdlog nlohmann_json::nlohmann_json)
    target_link_libraries(cohive_core PUBLIC Boost::headers)
  endif()
  if(name STREQUAL "transport" AND sources)
    target_link_libraries(cohive_transport PRIVATE resolv)
  endif()
endfunction()

function(cohive_bundle name)
  list(TRANSFORM ARGN PREPEND cohive_ OUTPUT_VARIABLE modules)
  add_library(cohive_bundle_${name} INTERFACE)
  target_link_libraries(cohive_bundle_${name} INTERFACE ${modules})
  add_library(cohive::${name} ALIAS cohive_bundle_${name})
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
  # "cohive/proto/x.pb.h" for users, "x.pb.h" for what protoc writes between the files.
  target_include_directories(cohive_proto SYSTEM PUBLIC "${out}" "${out}/cohive/proto")
  target_link_libraries(cohive_proto PUBLIC protobuf::libprotobuf)
endfunction()
