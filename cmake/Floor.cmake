# meshtrain_floor(NAME [PATH FOLDER] [FOLDERS FOLDERS... | SOURCES FILES...] [DEPENDS FLOORS...] [LINK LIBRARIES...]
#                 [WITHOUT_TORCH] [COLD])
#
# One library, meshtrain_NAME, per floor: the folder PATH of the repository, by default NAME; its sources, by default all
# of that folder and of its FOLDERS, except the CUDA plug-in's. Other folders in it are floors below. Headers are
# included from the repository root ("mesh/group.h"), but a target sees only its own floor and those it depends on: each
# floor's include folder holds a link to that floor alone.
#
# Templates of ATen take most of the compile time, and every file instantiates them again. Two dozen files are therefore
# compiled as one, and names in anonymous namespaces must be unique within a floor. A floor WITHOUT_TORCH compiles in
# seconds. A floor whose own code takes no measurable time is COLD (meshtrain_cold).
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
  else()  # headers alone
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

# meshtrain_unity(TARGET): compiles two dozen of its files as one, unless MESHTRAIN_UNITY is off. Files with compile
# options or definitions of their own are compiled alone.
function(meshtrain_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD "${MESHTRAIN_UNITY}" UNITY_BUILD_BATCH_SIZE 24)
endfunction()

# meshtrain_lanes(TARGET FILES...): files of the target with loops of mesh/device/host_lanes.h, which are compiled for
# AVX-512 and once more, through a file that includes them, for AVX2. GCC 12 calls registers of its own intrinsics
# uninitialised (GCC bug 105593), and keeps arrays of them in memory unless it unrolls the loops over them (-O3). Products
# and sums are fused where the loops say so, not where a compiler likes to: both sets compute the same.
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

# meshtrain_whole(TARGET FLOORS...): links all of these floors into a program, before its own objects.
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

# meshtrain_opens_plugins(TARGET): a program in which plug-ins find the functions of floors that they need. The floors that
# are not COLD come first: of a template that several files instantiate, a linker takes the first copy.
function(meshtrain_opens_plugins target)
  set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON DEFINE_SYMBOL "")
  get_property(floors GLOBAL PROPERTY MESHTRAIN_HOT)
  meshtrain_whole(${target} ${floors})
endfunction()

# meshtrain_holds_operators(TARGET): links the operators into a program that calls them by name alone: the linker would
# leave out the files that define them.
function(meshtrain_holds_operators target)
  meshtrain_whole(${target} model optimizer trainer)
endfunction()
