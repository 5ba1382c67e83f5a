# Finds miniupnpc. Defines MiniUpnpc::MiniUpnpc.
include(FindPackageHandleStandardArgs)
find_path(MiniUpnpc_INCLUDE_DIR miniupnpc/miniupnpc.h)
find_library(MiniUpnpc_LIBRARY miniupnpc)
mark_as_advanced(MiniUpnpc_INCLUDE_DIR MiniUpnpc_LIBRARY)
find_package_handle_standard_args(MiniUpnpc REQUIRED_VARS MiniUpnpc_LIBRARY MiniUpnpc_INCLUDE_DIR)
if(MiniUpnpc_FOUND AND NOT TARGET MiniUpnpc::MiniUpnpc)
  add_library(MiniUpnpc::MiniUpnpc UNKNOWN IMPORTED)
  set_target_properties(MiniUpnpc::MiniUpnpc PROPERTIES IMPORTED_LOCATION "${MiniUpnpc_LIBRARY}"
                                                        INTERFACE_INCLUDE_DIRECTORIES "${MiniUpnpc_INCLUDE_DIR}")
endif()
