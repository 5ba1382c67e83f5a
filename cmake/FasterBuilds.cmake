# Used by the presets: ccache and mold, where they are installed.
find_program(COHIVE_CCACHE ccache)
if(COHIVE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${COHIVE_CCACHE}")
endif()
find_program(COHIVE_MOLD mold)
if(COHIVE_MOLD)
  add_link_options($<$<LINK_LANG_AND_ID:CXX,Clang>:-fuse-ld=mold>)
endif()
