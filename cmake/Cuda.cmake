# The plug-in libmeshtrain_cuda.so, next to the program, which opens it for device: cuda. It has the *.cu and *_cuda.cpp
# files of all floors. *.cu files are kernels, and include no header of ATen, which would take nvcc a minute. The plug-in
# uses the floors' functions in the program that opens it, so each exists once.
set(MESHTRAIN_CUDA AUTO CACHE STRING "Build the CUDA plug-in: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE MESHTRAIN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(MESHTRAIN_CUDA_ARCHITECTURES 90 CACHE STRING
    "What its kernels are compiled for, as in CMAKE_CUDA_ARCHITECTURES; 90: code of sm_90, and PTX for later ones")

# Sets `missing` to the reason why the plug-in cannot be built; empty if it can.
function(meshtrain_find_cuda missing)
  file(GLOB toolkits "/usr/local/cuda*/bin")
  list(SORT toolkits COMPARE NATURAL ORDER DESCENDING)
  find_program(MESHTRAIN_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin PATHS ${toolkits})
  if(NOT MESHTRAIN_NVCC)
    set(${missing} "no nvcc in PATH or /usr/local/cuda*/bin" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND "${MESHTRAIN_NVCC}" --version OUTPUT_VARIABLE version)
  if(NOT version MATCHES "release 13\\.")
    string(REGEX MATCH "release [0-9.]+" version "${version}")
    set(${missing} "LibTorch is of CUDA 13, ${MESHTRAIN_NVCC} of ${version}" PARENT_SCOPE)
    return()
  endif()
  if(NOT EXISTS "${MESHTRAIN_LIBTORCH}/lib/libc10_cuda.so")
    set(${missing} "no libc10_cuda.so in ${MESHTRAIN_LIBTORCH}/lib: run tools/setup" PARENT_SCOPE)
    return()
  endif()
  get_filename_component(toolkit "${MESHTRAIN_NVCC}" REALPATH)
  get_filename_component(toolkit "${toolkit}/../.." REALPATH)
  set(nccl "${MESHTRAIN_LIBTORCH}/../nvidia/nccl")
  find_path(MESHTRAIN_NCCL_INCLUDE nccl.h HINTS "${nccl}/include" "${toolkit}/include")
  find_library(MESHTRAIN_NCCL NAMES nccl libnccl.so.2 HINTS "${nccl}/lib" "${toolkit}/lib64")
  if(NOT MESHTRAIN_NCCL_INCLUDE OR NOT MESHTRAIN_NCCL)
    set(${missing} "no nccl.h or libnccl.so in ${toolkit}" PARENT_SCOPE)
    return()
  endif()
  set(MESHTRAIN_CUDA_TOOLKIT "${toolkit}" PARENT_SCOPE)
  set(${missing} "" PARENT_SCOPE)
endfunction()

if(MESHTRAIN_CUDA STREQUAL "AUTO" OR MESHTRAIN_CUDA)
  meshtrain_find_cuda(missing)
else()
  set(missing "MESHTRAIN_CUDA is OFF")
endif()
if(missing)
  if(MESHTRAIN_CUDA AND NOT MESHTRAIN_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "MESHTRAIN_CUDA is ON: ${missing}")
  endif()
  message(STATUS "CUDA plug-in: not built: ${missing}")
  return()
endif()
target_compile_definitions(meshtrain_device PRIVATE MESHTRAIN_BUILDS_CUDA)   # for the message about a missing plug-in
message(STATUS "CUDA plug-in: ${MESHTRAIN_NVCC}, architectures ${MESHTRAIN_CUDA_ARCHITECTURES}")

set(CMAKE_CUDA_COMPILER "${MESHTRAIN_NVCC}")
set(CMAKE_CUDA_ARCHITECTURES "${MESHTRAIN_CUDA_ARCHITECTURES}")
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)   # CMake 3.25 does not know that nvcc has it

set(floors mesh tensor_parallel context_parallel fsdp runtime)
list(TRANSFORM floors PREPEND "${PROJECT_SOURCE_DIR}/")
list(TRANSFORM floors APPEND "/*.cu" OUTPUT_VARIABLE kernel_patterns)
list(TRANSFORM floors APPEND "/*_cuda.cpp" OUTPUT_VARIABLE source_patterns)
file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${kernel_patterns})
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${source_patterns})

# A MODULE is not linked to the program, so CUDA is loaded only when the plug-in is opened.
add_library(meshtrain_cuda MODULE ${sources})
set_target_properties(meshtrain_cuda PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" BUILD_WITH_INSTALL_RPATH ON
  # LibTorch's own libraries come before the toolkit's, so that one copy of each is loaded.
  INSTALL_RPATH "${MESHTRAIN_LIBTORCH}/lib;${MESHTRAIN_LIBTORCH}/../nvidia/nccl/lib;${MESHTRAIN_LIBTORCH}/../nvidia/cu13/lib;${MESHTRAIN_CUDA_TOOLKIT}/lib64")
target_compile_definitions(meshtrain_cuda PRIVATE "MESHTRAIN_CUDA_ARCHITECTURES=\"${MESHTRAIN_CUDA_ARCHITECTURES}\"")
target_include_directories(meshtrain_cuda PRIVATE $<TARGET_PROPERTY:meshtrain_runtime,INTERFACE_INCLUDE_DIRECTORIES>)
target_include_directories(meshtrain_cuda SYSTEM PRIVATE "${MESHTRAIN_NCCL_INCLUDE}" "${MESHTRAIN_CUDA_TOOLKIT}/include")
target_link_libraries(meshtrain_cuda PRIVATE meshtrain_torch "${MESHTRAIN_LIBTORCH}/lib/libc10_cuda.so"
  "${MESHTRAIN_CUDA_TOOLKIT}/lib64/libcudart.so" "${MESHTRAIN_NCCL}" meshtrain_flags)
target_precompile_headers(meshtrain_cuda REUSE_FROM meshtrain_pch)
meshtrain_unity(meshtrain_cuda)

# Separate options, because nvcc does not know the warnings of the other files.
if(kernels)
  add_library(meshtrain_cuda_kernels OBJECT ${kernels})
  set_target_properties(meshtrain_cuda_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_RUNTIME_LIBRARY None)
  # A kernel that needs too many registers would spill them to memory silently. The build fails if this happens for the
  # architecture that kernels are tuned for, and warns for others.
  set(ptxas --warn-on-spills,--warn-on-local-memory-usage)
  if(MESHTRAIN_CUDA_ARCHITECTURES STREQUAL "90")
    string(APPEND ptxas ",--warning-as-error")
  endif()
  target_compile_options(meshtrain_cuda_kernels PRIVATE -Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr -Xptxas=${ptxas})
  target_include_directories(meshtrain_cuda_kernels PRIVATE
    $<TARGET_PROPERTY:meshtrain_runtime,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(meshtrain_cuda PRIVATE meshtrain_cuda_kernels)
endif()
# Links with g++; CMake would choose nvcc for its objects.
set_target_properties(meshtrain_cuda PROPERTIES LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY None)
