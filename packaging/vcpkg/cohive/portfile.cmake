# An overlay port of this source tree: vcpkg install cohive --overlay-ports=packaging/vcpkg
# Without cohive::torch: LibTorch comes from a wheel or an archive, see FindLibTorch.cmake.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
vcpkg_check_features(OUT_FEATURE_OPTIONS FEATURE_OPTIONS FEATURES
  cuda COHIVE_WITH_CUDA
  port-mapping COHIVE_PORT_MAPPING
  tools COHIVE_TOOLS)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${FEATURE_OPTIONS} -DCOHIVE_TESTS=OFF -DCOHIVE_INSTALL=ON -DCOHIVE_WITH_TORCH=OFF -DCOHIVE_IPSEC_MB=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME cohive CONFIG_PATH lib/cmake/cohive)
vcpkg_fixup_pkgconfig()
if("tools" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES cohive-bootstrap cohive-monitor cohive-dht cohive-bench AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share"
                    "${CURRENT_PACKAGES_DIR}/debug/lib/systemd" "${CURRENT_PACKAGES_DIR}/lib/systemd")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
