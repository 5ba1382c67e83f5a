# Debian packages: `cpack -G DEB` in the build directory makes
#   cohive          the programs that need no LibTorch, their manual pages and completions, the systemd unit
#   cohive-train    the trainer, if there is LibTorch; that is not in it, nor in Debian: cohive-get-libtorch fetches it
#   libcohive-dev   the archives, headers and package files of all components that were built
#   libcohive0.1    with BUILD_SHARED_LIBS, in place of the archives, the libraries; the number is their version
include(GNUInstallDirs)
set(package_components development)
if(COHIVE_TOOLS)
  list(PREPEND package_components programs)
endif()
if(TARGET cohive-train)
  list(APPEND package_components trainer)
endif()
set(release "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
if(BUILD_SHARED_LIBS)
  list(PREPEND package_components libraries)
endif()
set(CPACK_COMPONENTS_ALL ${package_components})
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PACKAGE_NAME cohive)
set(CPACK_PACKAGE_VENDOR cohive)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "train one neural network together on unreliable machines")
set(CPACK_PACKAGE_CONTACT "The cohive authors <packages@cohive.invalid>" CACHE STRING "who maintains the packages, NAME <ADDRESS>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_OUTPUT_FILE_PREFIX packages)
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME cohive)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_PROGRAMS_DESCRIPTION "cohive-bootstrap is the first address of a swarm and can relay peers that are
behind routers; a systemd unit runs it as a service, when it is enabled.
cohive-monitor shows a training run, cohive-dht looks into a swarm and says why
it cannot be joined, cohive-bench measures. They speak the protocols of Python
hivemind 1.1.12 and of libp2p.")
set(scripts "${PROJECT_SOURCE_DIR}/packaging/debian")
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_CONTROL_EXTRA "${scripts}/postinst;${scripts}/prerm;${scripts}/postrm")

set(CPACK_DEBIAN_TRAINER_PACKAGE_NAME cohive-train)
set(CPACK_DEBIAN_TRAINER_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TRAINER_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TRAINER_PACKAGE_RECOMMENDS "cohive, python3-pip")
if(TARGET cohive-train)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${LibTorch_ROOT_DIR}/lib")
endif()
set(CPACK_COMPONENT_TRAINER_DESCRIPTION "cohive-train trains a transformer over text or a network for images together
with other machines; a systemd unit runs one trainer for each run. It needs
LibTorch, which Debian does not have: cohive-get-libtorch fetches it.")
set(CPACK_DEBIAN_TRAINER_PACKAGE_CONTROL_EXTRA "${scripts}/trainer/postinst;${scripts}/trainer/prerm;${scripts}/trainer/postrm")

set(CPACK_DEBIAN_LIBRARIES_PACKAGE_NAME libcohive${release})
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_LIBRARIES_DESCRIPTION "A distributed hash table, averaging in groups and collaborative training, as
shared libraries for programs in C++.")
if(BUILD_SHARED_LIBS)
  set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS} "${PROJECT_BINARY_DIR}")
  foreach(component PROGRAMS TRAINER DEVELOPMENT)
    set(CPACK_COMPONENT_${component}_DEPENDS libraries)
  endforeach()
endif()

# What find_package(cohive) looks for. Boost is the very release that cohive was built with.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" boost_release "${COHIVE_BOOST_VERSION}")
cohive_of_found(optional "IPSecMB libipsec-mb-dev" "NatPmp libnatpmp-dev" "MiniUpnpc libminiupnpc-dev")
set(needs "libboost${boost_release}-dev" libfmt-dev libprotobuf-dev libsodium-dev libspdlog-dev libssl-dev
          prometheus-cpp-dev ${optional})
list(JOIN needs ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libcohive-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "A distributed hash table, averaging in groups and collaborative training, for
programs in C++20, with headers and CMake package files.
They speak the protocols of Python hivemind 1.1.12 and of libp2p.")

# Debian wants both in every package.
function(cohive_package_documents component package)
  set(folder "${CMAKE_INSTALL_DATAROOTDIR}/doc/${package}")
  install(FILES LICENSE DESTINATION "${folder}" RENAME copyright COMPONENT ${component})
  install(FILES CHANGELOG.md DESTINATION "${folder}" RENAME changelog.md COMPONENT ${component})
endfunction()
cohive_package_documents(development libcohive-dev)
if(COHIVE_TOOLS)
  cohive_package_documents(programs cohive)
endif()
if(TARGET cohive-train)
  cohive_package_documents(trainer cohive-train)
endif()
if(BUILD_SHARED_LIBS)
  cohive_package_documents(libraries libcohive${release})
endif()

include(CPack)
