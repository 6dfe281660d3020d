# Functions that check and add a folder of LibTorch, for meshtrain's own build and for find_package(meshtrain). The wheel's
# TorchConfig.cmake needs nvcc; these do not.

# meshtrain_torch_problem(TORCH VARIABLE): sets VARIABLE to the reason why TORCH is not a folder of LibTorch 2.11, or to "".
# Another version may lack a header or, worse, compile and compute something else.
function(meshtrain_torch_problem torch variable)
  set(header "${torch}/include/torch/headeronly/version.h")
  set(version "no version: there is no ${header}")
  if(EXISTS "${header}")
    file(READ "${header}" text)
    set(version "no TORCH_VERSION in ${header}")
    if(text MATCHES "TORCH_VERSION[ \\\n]+\"([0-9]+\\.[0-9]+[^\"]*)\"")
      set(version "version ${CMAKE_MATCH_1}")
    endif()
  endif()
  if(NOT EXISTS "${torch}/lib/libtorch_cpu.so")
    set(${variable} "No LibTorch in ${torch}" PARENT_SCOPE)
  elseif(NOT version MATCHES "^version 2\\.11\\.")
    set(${variable} "LibTorch 2.11 is required, but ${torch} has ${version}" PARENT_SCOPE)
  else()
    set(${variable} "" PARENT_SCOPE)
  endif()
endfunction()

# meshtrain_add_torch(TARGET TORCH): the CPU libraries and headers of LibTorch.
function(meshtrain_add_torch target torch)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} SYSTEM INTERFACE "${torch}/include" "${torch}/include/torch/csrc/api/include")
  target_link_libraries(${target} INTERFACE "${torch}/lib/libtorch_cpu.so" "${torch}/lib/libc10.so")
  # libtorch_cpu finds the CUDA runtime through its rpath; the linker needs the folder.
  target_link_options(${target} INTERFACE "-Wl,-rpath-link,${torch}/../nvidia/cu13/lib")
endfunction()
