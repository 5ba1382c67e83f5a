# Finds libnatpmp. Defines NatPmp::NatPmp.
include(FindPackageHandleStandardArgs)
find_path(NatPmp_INCLUDE_DIR natpmp.h)
find_library(NatPmp_LIBRARY natpmp)
mark_as_advanced(NatPmp_INCLUDE_DIR NatPmp_LIBRARY)
find_package_handle_standard_args(NatPmp REQUIRED_VARS NatPmp_LIBRARY NatPmp_INCLUDE_DIR)
if(NatPmp_FOUND AND NOT TARGET NatPmp::NatPmp)
  add_library(NatPmp::NatPmp UNKNOWN IMPORTED)
  set_target_properties(NatPmp::NatPmp PROPERTIES IMPORTED_LOCATION "${NatPmp_LIBRARY}"
                                                  INTERFACE_INCLUDE_DIRECTORIES "${NatPmp_INCLUDE_DIR}")
endif()
