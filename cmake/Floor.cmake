# meshtrain_floor(NAME [PATH FOLDER] [FOLDERS FOLDERS... | SOURCES FILES...] [DEPENDS FLOORS...] [LINK LIBRARIES...]
#                 [WITHOUT_TORCH] [COLD])
#
# Makes the library meshtrain_NAME of one floor from the folder PATH of the repository, by default NAME. Its sources are by
# default all files of that folder and of its FOLDERS, except the CUDA plug-in's; other folders in it are floors of their
# own. Headers are included from the repository root ("mesh/group.h"). A target sees only its own floor and its
# dependencies, because the include folder of each floor has only a link to that floor.
#
# Every file instantiates ATen's templates, which take most of the compile time. Two dozen files are therefore compiled as
# one, and names in anonymous namespaces must be unique within a floor. A floor WITHOUT_TORCH compiles in seconds. A floor
# whose code takes no measurable time at run time is COLD (meshtrain_cold).
function(meshtrain_floor name)
  cmake_parse_arguments(FLOOR "WITHOUT_TORCH;COLD" "PATH" "FOLDERS;SOURCES;DEPENDS;LINK" ${ARGN})
  if(NOT FLOOR_PATH)
    set(FLOOR_PATH ${name})
  endif()
  if(NOT FLOOR_SOURCES)
    list(TRANSFORM FLOOR_FOLDERS APPEND "/*.cpp" OUTPUT_VARIABLE patterns)
    list(APPEND patterns "*.cpp")
    list(TRANSFORM patterns PREPEND "${PROJECT_SOURCE_DIR}/${FLOOR_PATH}/")
    file(GLOB FLOOR_SOURCES CONFIGURE_DEPENDS ${patterns})
    list(FILTER FLOOR_SOURCES EXCLUDE REGEX "_cuda.cpp$")
  endif()
  set(target meshtrain_${name})
  set(include "${PROJECT_BINARY_DIR}/floors/${name}")
  get_filename_component(parent "${include}/${FLOOR_PATH}" DIRECTORY)
  file(MAKE_DIRECTORY "${parent}")
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${FLOOR_PATH}" "${include}/${FLOOR_PATH}" SYMBOLIC)

  string(REPLACE ";" "," depends "${FLOOR_DEPENDS}")
  set_property(GLOBAL APPEND_STRING PROPERTY MESHTRAIN_FLOORS "${name} ${FLOOR_PATH} ${FLOOR_WITHOUT_TORCH} ${depends}\n")

  set(kind PUBLIC)
  if(FLOOR_SOURCES)
    add_library(${target} STATIC ${FLOOR_SOURCES})
    target_link_libraries(${target} PRIVATE meshtrain_flags)
    meshtrain_unity(${target})
    set(header meshtrain_pch)
    if(FLOOR_COLD)
      target_compile_options(${target} PRIVATE ${MESHTRAIN_COLD})
      set(header meshtrain_cold_pch)
    else()
      set_property(GLOBAL APPEND PROPERTY MESHTRAIN_HOT ${name})
    endif()
    if(NOT FLOOR_WITHOUT_TORCH)
      target_precompile_headers(${target} REUSE_FROM ${header})
    endif()
  else()  # only headers
    add_library(${target} INTERFACE)
    set(kind INTERFACE)
  endif()
  if(NOT FLOOR_WITHOUT_TORCH)
    list(APPEND FLOOR_LINK meshtrain_torch)
  endif()
  set_target_properties(${target} PROPERTIES MESHTRAIN_FOLDER ${FLOOR_PATH})
  target_include_directories(${target} ${kind} "${include}")
  list(TRANSFORM FLOOR_DEPENDS PREPEND meshtrain_)
  target_link_libraries(${target} ${kind} ${FLOOR_DEPENDS} ${FLOOR_LINK})
endfunction()

# meshtrain_unity(TARGET): compiles two dozen of its files as one, unless MESHTRAIN_UNITY is off. Files with their own
# compile options or definitions are compiled alone.
function(meshtrain_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD "${MESHTRAIN_UNITY}" UNITY_BUILD_BATCH_SIZE 24)
endfunction()

# meshtrain_lanes(TARGET FILES...): compiles files with loops of mesh/device/host_lanes.h twice, for AVX-512 and, through a
# file that includes them, for AVX2. GCC 12 reports registers of its own intrinsics as uninitialised (GCC bug 105593), and
# keeps arrays of them in memory unless it unrolls the loops over them (-O3). -ffp-contract=off: products and sums are
# fused only where the loops say so; otherwise the two versions would have different bits.
function(meshtrain_lanes target)
  foreach(file ${ARGN})
    get_filename_component(path "${file}" ABSOLUTE)
    string(REPLACE "/" "_" copy "${file}")
    set(copy "${CMAKE_CURRENT_BINARY_DIR}/avx2/${copy}")
    file(CONFIGURE OUTPUT "${copy}" CONTENT "#include \"${path}\"\n")
    target_sources(${target} PRIVATE "${copy}")
    set(options -Wno-maybe-uninitialized -ffp-contract=off $<$<CONFIG:Release>:-O3>)
    set_source_files_properties("${path}" PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON
      COMPILE_DEFINITIONS MESHTRAIN_LOOPS_AVX512)
    set_source_files_properties("${copy}" PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON
      COMPILE_DEFINITIONS MESHTRAIN_LOOPS_AVX2)
  endforeach()
endfunction()

# meshtrain_whole(TARGET FLOORS...): links all objects of these floors into a program, before its own objects.
function(meshtrain_whole target)
  foreach(floor ${ARGN})
    get_target_property(linked ${target} MESHTRAIN_WHOLE)
    if(NOT floor IN_LIST linked)
      set_property(TARGET ${target} APPEND PROPERTY MESHTRAIN_WHOLE ${floor})
      target_link_options(${target} PRIVATE
        "LINKER:--whole-archive,$<TARGET_FILE:meshtrain_${floor}>,--no-whole-archive")
    endif()
  endforeach()
endfunction()

# meshtrain_opens_plugins(TARGET): exports the functions of the floors from a program to its plug-ins. Floors that are not
# COLD come first, because the linker takes the first copy of a template that several files instantiate.
function(meshtrain_opens_plugins target)
  set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON DEFINE_SYMBOL "")
  get_property(floors GLOBAL PROPERTY MESHTRAIN_HOT)
  meshtrain_whole(${target} ${floors})
endfunction()

# meshtrain_holds_operators(TARGET): links the operators into a program that calls them only by name. Otherwise the linker
# would leave out the files that define them.
function(meshtrain_holds_operators target)
  meshtrain_whole(${target} model optimizer trainer)
endfunction()
