# The target meshtrain_torch: LibTorch's CPU libraries and headers, from tools/setup's folder or the user's.
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

# Removes this machine's folders from __FILE__: paths begin below the sources, the build or LibTorch. Debuggers still find
# the sources.
foreach(folder "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}" "${MESHTRAIN_LIBTORCH}")
  target_compile_options(meshtrain_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${folder}/=>)
endforeach()

# Two precompiled headers: one for all code, and one, without autograd, for code that takes no measurable time. GCC keeps
# the options of a header, so the header decides the optimisation of the code after it. Each file instantiates the
# templates that functions of the header call; those of the dispatcher and autograd take 1.4 s.
set(headers "${PROJECT_SOURCE_DIR}/mesh/device/aten.h" <ATen/Parallel.h>
  <algorithm> <filesystem> <functional> <map> <memory> <optional> <string> <vector>)
set(autograd_headers <torch/csrc/autograd/autograd.h> <torch/csrc/autograd/custom_function.h>
  <torch/csrc/autograd/engine.h> <torch/csrc/autograd/variable.h> <torch/library.h>)
file(WRITE "${PROJECT_BINARY_DIR}/pch.cpp" "")
foreach(name pch cold_pch)
  add_library(meshtrain_${name} OBJECT "${PROJECT_BINARY_DIR}/pch.cpp")
  target_link_libraries(meshtrain_${name} PUBLIC meshtrain_torch meshtrain_flags)
  target_precompile_headers(meshtrain_${name} PRIVATE ${headers})
endforeach()
target_precompile_headers(meshtrain_pch PRIVATE ${autograd_headers})
target_compile_options(meshtrain_cold_pch PRIVATE ${MESHTRAIN_COLD})

# meshtrain_cold(TARGET): compiles a target that takes no measurable time at run time, in two thirds of the compile time.
function(meshtrain_cold target)
  target_compile_options(${target} PRIVATE ${MESHTRAIN_COLD})
  target_precompile_headers(${target} REUSE_FROM meshtrain_cold_pch)
endfunction()
