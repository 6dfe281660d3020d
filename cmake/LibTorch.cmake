# The target meshtrain_torch: LibTorch's CPU libraries and headers, from tools/setup's folder or a user's own.
if(DEFINED ENV{MESHTRAIN_DEPS})
  set(deps "$ENV{MESHTRAIN_DEPS}")
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(deps "$ENV{XDG_CACHE_HOME}/meshtrain")
else()
  set(deps "$ENV{HOME}/.cache/meshtrain")
endif()
set(MESHTRAIN_LIBTORCH "${deps}/libtorch-2.11.0/torch" CACHE PATH "A LibTorch 2.11 folder: include/ and lib/")
include("${CMAKE_CURRENT_LIST_DIR}/TorchTarget.cmake")
meshtrain_torch_problem("${MESHTRAIN_LIBTORCH}" problem)
if(problem)
  message(FATAL_ERROR "${problem}: run tools/setup and leave MESHTRAIN_LIBTORCH out, or set -DMESHTRAIN_LIBTORCH to the "
                      "folder of your own LibTorch 2.11.")
endif()
meshtrain_add_torch(meshtrain_torch "${MESHTRAIN_LIBTORCH}")

# Keeps folders of this machine out of objects: __FILE__ begins below the sources, the build or LibTorch. Debuggers still
# find the sources.
foreach(folder "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}" "${MESHTRAIN_LIBTORCH}")
  target_compile_options(meshtrain_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${folder}/=>)
endforeach()

# One precompiled header, shared by every target.
file(WRITE "${PROJECT_BINARY_DIR}/pch.cpp" "")
add_library(meshtrain_pch OBJECT "${PROJECT_BINARY_DIR}/pch.cpp")
target_link_libraries(meshtrain_pch PUBLIC meshtrain_torch meshtrain_flags)
target_precompile_headers(meshtrain_pch PRIVATE
  <ATen/ATen.h> <ATen/Parallel.h> <torch/csrc/autograd/autograd.h> <torch/csrc/autograd/custom_function.h>
  <torch/csrc/autograd/engine.h> <torch/csrc/autograd/variable.h> <torch/library.h>
  <algorithm> <filesystem> <functional> <map> <memory> <optional> <string> <vector>)
