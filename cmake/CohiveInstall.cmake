# Installs cohive for find_package(cohive): cohive::net, cohive::averaging and, where built, cohive::torch and cohive::cuda
# (static), and the public headers. The programs are installed where they are built, in tools/.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(targets GLOBAL PROPERTY COHIVE_TARGETS)
install(TARGETS ${targets} EXPORT cohiveTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
set(unbuilt_headers)
if(NOT COHIVE_HAVE_TORCH)
  set(unbuilt_headers PATTERN "train" EXCLUDE)
endif()
if(NOT COHIVE_HAVE_CUDA)
  list(APPEND unbuilt_headers PATTERN "cuda" EXCLUDE)
endif()
install(DIRECTORY include/cohive DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" ${unbuilt_headers})

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/cohive")
install(EXPORT cohiveTargets NAMESPACE cohive:: DESTINATION "${package_dir}")
configure_package_config_file(cmake/cohiveConfig.cmake.in cohiveConfig.cmake INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file(cohiveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/cohiveConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/cohiveConfigVersion.cmake"
              cmake/FindLibTorch.cmake DESTINATION "${package_dir}")
