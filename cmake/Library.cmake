# libmeshtrain.so has the floors that train any model, for other programs. `cmake --install` copies the library, the
# headers of its floors and the files of find_package(meshtrain). The library is shared, because operators register
# themselves when their file is loaded, and a linker would leave such files of an archive out.
set(floors base device mesh products tensor_parallel context_parallel pipeline_parallel expert_parallel fsdp metrics safetensors optimizer checkpoint trainer)

set(objects "")
foreach(floor ${floors})
  get_target_property(kind meshtrain_${floor} TYPE)
  if(NOT kind STREQUAL "INTERFACE_LIBRARY")  # such a floor has only headers
    list(APPEND objects $<TARGET_OBJECTS:meshtrain_${floor}>)
  endif()
  get_target_property(folder meshtrain_${floor} MESHTRAIN_FOLDER)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}/" DESTINATION "include/meshtrain/${folder}" FILES_MATCHING PATTERN "*.h")
endforeach()

add_library(meshtrain_library SHARED ${objects})
# The library has no run path, so it names no folder of this machine. The program that links it finds LibTorch and MPI.
set_target_properties(meshtrain_library PROPERTIES OUTPUT_NAME meshtrain LINKER_LANGUAGE CXX
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "")
target_link_options(meshtrain_library PRIVATE LINKER:-z,defs)  # fails when a floor is missing above
target_link_libraries(meshtrain_library PRIVATE meshtrain_flags meshtrain_torch MPI::MPI_CXX Threads::Threads
  "${MESHTRAIN_XXHASH}" "${MESHTRAIN_ZLIB}" "${MESHTRAIN_ZSTD}" ${CMAKE_DL_LIBS})

# For a project that adds this folder with add_subdirectory(): the headers of the library's floors and no others.
add_library(meshtrain::meshtrain ALIAS meshtrain_library)
foreach(floor ${floors})
  target_include_directories(meshtrain_library INTERFACE "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/floors/${floor}>")
endforeach()
target_link_libraries(meshtrain_library INTERFACE meshtrain_torch MPI::MPI_CXX Threads::Threads)
target_compile_features(meshtrain_library INTERFACE cxx_std_20)

include(CMakePackageConfigHelpers)
set(package lib/cmake/meshtrain)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/meshtrainConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(TARGETS meshtrain_library LIBRARY DESTINATION lib)
install(FILES cmake/meshtrainConfig.cmake cmake/TorchTarget.cmake "${PROJECT_BINARY_DIR}/meshtrainConfigVersion.cmake"
  DESTINATION ${package})
