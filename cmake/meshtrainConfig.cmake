# find_package(meshtrain) defines the target meshtrain::meshtrain, with LibTorch and MPI. It takes LibTorch 2.11 from the
# folder in -DMESHTRAIN_LIBTORCH, which has include/ and lib/, or from a folder in CMAKE_PREFIX_PATH.
include(CMakeFindDependencyMacro)
find_dependency(MPI COMPONENTS CXX)
find_dependency(Threads)

set(MESHTRAIN_LIBTORCH "" CACHE PATH "A LibTorch 2.11 folder: include/ and lib/; empty: the one in CMAKE_PREFIX_PATH")
set(meshtrain_torch_folder "${MESHTRAIN_LIBTORCH}")
if(NOT meshtrain_torch_folder)
  find_path(MESHTRAIN_TORCH_INCLUDE torch/headeronly/version.h)
  cmake_path(GET MESHTRAIN_TORCH_INCLUDE PARENT_PATH meshtrain_torch_folder)
endif()
include("${CMAKE_CURRENT_LIST_DIR}/TorchTarget.cmake")
if(meshtrain_torch_folder)
  meshtrain_torch_problem("${meshtrain_torch_folder}" meshtrain_problem)
else()
  set(meshtrain_problem "LibTorch 2.11 is not found")
endif()
if(meshtrain_problem)
  string(CONCAT meshtrain_NOT_FOUND_MESSAGE "${meshtrain_problem}: point -DMESHTRAIN_LIBTORCH at a LibTorch 2.11, or name "
                "its folder in CMAKE_PREFIX_PATH")
  set(meshtrain_FOUND FALSE)
  return()
endif()

if(NOT TARGET meshtrain::meshtrain)
  meshtrain_add_torch(meshtrain::torch "${meshtrain_torch_folder}")
  get_filename_component(meshtrain_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  add_library(meshtrain::meshtrain SHARED IMPORTED GLOBAL)
  set_target_properties(meshtrain::meshtrain PROPERTIES
    IMPORTED_LOCATION "${meshtrain_prefix}/lib/libmeshtrain.so"
    INTERFACE_INCLUDE_DIRECTORIES "${meshtrain_prefix}/include/meshtrain"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_LINK_LIBRARIES "meshtrain::torch;MPI::MPI_CXX;Threads::Threads")
endif()
