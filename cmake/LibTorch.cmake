# The target meshtrain_torch: LibTorch's CPU libraries and headers, from tools/setup's folder or a user's own.
# (The wheel's own TorchConfig.cmake needs nvcc; this does not.)
if(DEFINED ENV{MESHTRAIN_DEPS})
  set(deps "$ENV{MESHTRAIN_DEPS}")
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(deps "$ENV{XDG_CACHE_HOME}/meshtrain")
else()
  set(deps "$ENV{HOME}/.cache/meshtrain")
endif()
set(MESHTRAIN_LIBTORCH "${deps}/libtorch-2.11.0/torch" CACHE PATH "A LibTorch 2.11 folder: include/ and lib/")
if(NOT EXISTS "${MESHTRAIN_LIBTORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No LibTorch in ${MESHTRAIN_LIBTORCH}: run tools/setup, "
                      "or point -DMESHTRAIN_LIBTORCH at a LibTorch 2.11 of your own.")
endif()
# Another version may lack a header or, worse, compile and compute something else.
block()
  set(header "${MESHTRAIN_LIBTORCH}/include/torch/headeronly/version.h")
  set(version "no version: there is no ${header}")
  if(EXISTS "${header}")
    file(READ "${header}" text)
    set(version "no TORCH_VERSION in ${header}")
    if(text MATCHES "TORCH_VERSION[ \\\n]+\"([0-9]+\\.[0-9]+[^\"]*)\"")
      set(version "version ${CMAKE_MATCH_1}")
    endif()
  endif()
  if(NOT version MATCHES "^version 2\\.11\\.")
    message(FATAL_ERROR "LibTorch 2.11 is wanted, and ${MESHTRAIN_LIBTORCH} has ${version}: run tools/setup and leave "
                        "MESHTRAIN_LIBTORCH out, or point -DMESHTRAIN_LIBTORCH at a LibTorch 2.11 of your own.")
  endif()
endblock()

add_library(meshtrain_torch INTERFACE)
target_include_directories(meshtrain_torch SYSTEM INTERFACE
  "${MESHTRAIN_LIBTORCH}/include" "${MESHTRAIN_LIBTORCH}/include/torch/csrc/api/include")
target_link_libraries(meshtrain_torch INTERFACE
  "${MESHTRAIN_LIBTORCH}/lib/libtorch_cpu.so" "${MESHTRAIN_LIBTORCH}/lib/libc10.so")
# libtorch_cpu finds the CUDA run-time through its own rpath; the linker has to be shown the folder.
target_link_options(meshtrain_torch INTERFACE "-Wl,-rpath-link,${MESHTRAIN_LIBTORCH}/../nvidia/cu13/lib")

# One precompiled header, shared by every target.
file(WRITE "${PROJECT_BINARY_DIR}/pch.cpp" "")
add_library(meshtrain_pch OBJECT "${PROJECT_BINARY_DIR}/pch.cpp")
target_link_libraries(meshtrain_pch PUBLIC meshtrain_torch meshtrain_flags)
target_precompile_headers(meshtrain_pch PRIVATE
  <ATen/ATen.h> <ATen/Parallel.h> <torch/csrc/autograd/autograd.h> <torch/csrc/autograd/custom_function.h>
  <torch/csrc/autograd/engine.h> <torch/csrc/autograd/variable.h> <torch/library.h>
  <algorithm> <filesystem> <functional> <map> <memory> <optional> <string> <vector>)
