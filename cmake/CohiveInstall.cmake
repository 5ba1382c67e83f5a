# Installs cohive for find_package(cohive COMPONENTS ...): the libraries of each component, their public headers and the
# find modules that users need. The programs are installed where they are built, in tools/.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/cohive")

# What the package file has to know of each component, as CMake code.
get_property(components GLOBAL PROPERTY COHIVE_COMPONENTS)
set(COHIVE_COMPONENT_FACTS "set(_cohive_components ${components})\n")
set(libraries_package libraries)
if(NOT BUILD_SHARED_LIBS)  # libcohive.so is the only one
  set(libraries_package development)
endif()
foreach(component IN LISTS components)
  get_property(targets GLOBAL PROPERTY COHIVE_TARGETS_${component})
  get_property(needs GLOBAL PROPERTY COHIVE_NEEDS_${component})
  get_property(packages GLOBAL PROPERTY COHIVE_PACKAGES_${component})
  string(APPEND COHIVE_COMPONENT_FACTS "set(_cohive_needs_${component} ${needs})\n"
                                       "set(_cohive_packages_${component} \"${packages}\")\n")
  install(TARGETS ${targets} EXPORT cohive-${component}
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT ${libraries_package} NAMELINK_COMPONENT development
          INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT cohive-${component} NAMESPACE cohive:: DESTINATION "${package_dir}" COMPONENT development)
endforeach()

get_property(modules GLOBAL PROPERTY COHIVE_MODULES)
foreach(module IN LISTS modules)
  install(DIRECTORY include/cohive/${module} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/cohive" COMPONENT development)
endforeach()

install(FILES include/cohive/cohive.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/cohive" COMPONENT development)

configure_package_config_file(cmake/cohiveConfig.cmake.in cohiveConfig.cmake INSTALL_DESTINATION "${package_dir}"
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(cohiveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/cohiveConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/cohiveConfigVersion.cmake"
              cmake/FindCudaRuntime.cmake cmake/FindIPSecMB.cmake cmake/FindLibTorch.cmake cmake/FindMiniUpnpc.cmake
              cmake/FindNatPmp.cmake cmake/FindSodium.cmake
        DESTINATION "${package_dir}" COMPONENT development)

# For builds without CMake: cohive-net.pc, cohive-averaging.pc, cohive-train.pc, cohive-testing.pc, and cohive.pc, which is
# all but the last. What archives need is linked, too. LibTorch and CUDA have no files of this kind.
set(pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH pc_to_prefix "/${pc_dir}" "/")
function(cohive_pkg_config pc_name pc_description pc_requires)
  list(JOIN ARGN " " pc_libraries)
  list(JOIN libraries_beside_${component} " " pc_private)
  if(NOT BUILD_SHARED_LIBS)
    string(APPEND pc_libraries " ${pc_private}")
    set(pc_private)
  endif()
  configure_file(cmake/cohive.pc.in ${pc_name}.pc @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${pc_name}.pc" DESTINATION "${pc_dir}" COMPONENT development)
endfunction()

cohive_of_found(optional "IPSecMB -lIPSec_MB" "NatPmp -lnatpmp" "MiniUpnpc -lminiupnpc")
set(libraries_beside_net -lprometheus-cpp-core -lspdlog -lfmt -lsodium -lssl -lcrypto -lprotobuf-lite ${optional} -lresolv -pthread)
foreach(component net averaging train testing)
  get_property(targets GLOBAL PROPERTY COHIVE_TARGETS_${component})
  get_property(needs GLOBAL PROPERTY COHIVE_NEEDS_${component})
  list(FILTER targets EXCLUDE REGEX "^cohive_bundle_")
  list(REVERSE targets)  # what needs a library comes before it
  list(TRANSFORM targets PREPEND -l)
  list(TRANSFORM needs PREPEND cohive-)
  cohive_pkg_config(cohive-${component} "cohive::${component} of cohive" "${needs}" ${targets})
endforeach()
unset(component)
cohive_pkg_config(cohive "${PROJECT_DESCRIPTION}" cohive-train)

# `cmake --install` builds what it installs where that is not there yet: tools/demo.sh, for one, builds three programs.
get_property(installed_targets GLOBAL PROPERTY COHIVE_INSTALLED_TARGETS)
get_property(installed_files GLOBAL PROPERTY COHIVE_INSTALLED_FILES)
foreach(component IN LISTS components)
  get_property(targets GLOBAL PROPERTY COHIVE_TARGETS_${component})
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "^(STATIC|SHARED)_LIBRARY$")
      list(APPEND installed_targets ${target})
      list(APPEND installed_files "$<TARGET_FILE:${target}>")
    endif()
  endforeach()
endforeach()
add_custom_target(cohive_installed)
add_dependencies(cohive_installed ${installed_targets})
list(JOIN installed_files "\"\n\"" installed_files)
file(GENERATE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/build_missing_$<CONFIG>.cmake" CONTENT
"foreach(file IN ITEMS\n\"${installed_files}\")
  if(NOT EXISTS \"\${file}\")
    message(STATUS \"cohive: building what is not there yet, such as \${file}\")
    execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${CMAKE_BINARY_DIR}\" --config \"$<CONFIG>\"
                            --target cohive_installed COMMAND_ERROR_IS_FATAL ANY)
    break()
  endif()
endforeach()
")
unset(component)
