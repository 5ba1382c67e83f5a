# Finds the static CUDA runtime: below CudaRuntime_ROOT, the toolkit that CUDACXX or CUDA_PATH names, or /usr/local/cuda.
# Defines CudaRuntime::CudaRuntime. (FindCUDAToolkit of CMake 3.25 fails with CUDA 13 and demands a compiler.)
include(FindPackageHandleStandardArgs)
find_package(Threads REQUIRED)
get_filename_component(_cudacxx_dir "$ENV{CUDACXX}" DIRECTORY)
set(_cuda_places HINTS "${_cudacxx_dir}/.." PATHS ENV CUDA_PATH /usr/local/cuda)
find_path(CudaRuntime_INCLUDE_DIR cuda_runtime_api.h ${_cuda_places} PATH_SUFFIXES include targets/x86_64-linux/include)
find_library(CudaRuntime_LIBRARY cudart_static ${_cuda_places} PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
mark_as_advanced(CudaRuntime_INCLUDE_DIR CudaRuntime_LIBRARY)
find_package_handle_standard_args(CudaRuntime REQUIRED_VARS CudaRuntime_LIBRARY CudaRuntime_INCLUDE_DIR)
if(CudaRuntime_FOUND AND NOT TARGET CudaRuntime::CudaRuntime)
  add_library(CudaRuntime::CudaRuntime STATIC IMPORTED)
  set_target_properties(CudaRuntime::CudaRuntime PROPERTIES
    IMPORTED_LOCATION "${CudaRuntime_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${CudaRuntime_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};rt")
endif()
