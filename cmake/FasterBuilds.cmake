# Used by the presets: sources joined by the dozen, which compiles everything in a third of the time (where a single file
# is edited again and again, -DCMAKE_UNITY_BUILD=OFF is faster); ccache and mold, where they are installed.
set(CMAKE_UNITY_BUILD ON CACHE BOOL "compile the sources of a target by the dozen")
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
find_program(COHIVE_CCACHE ccache)
if(COHIVE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${COHIVE_CCACHE}")
endif()
find_program(COHIVE_MOLD mold)
if(COHIVE_MOLD)
  add_link_options($<$<LINK_LANG_AND_ID:CXX,Clang>:-fuse-ld=mold>)
endif()
