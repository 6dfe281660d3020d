# meshtrain_floor(NAME SOURCES... DEPENDS FLOORS... LINK LIBRARIES...)
#
# One library per floor. Headers are included from the repository root ("mesh/group.h"), but a target sees
# only its own floor and those it depends on: each floor's include folder holds a link to that floor alone.
#
# Templates of ATen take most of the time and are instantiated in every file anew, so a dozen files are compiled as one.
# Names in anonymous namespaces are therefore unique within a floor.
function(meshtrain_floor name)
  cmake_parse_arguments(FLOOR "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
  set(target meshtrain_${name})
  set(include "${PROJECT_BINARY_DIR}/floors/${name}")
  file(MAKE_DIRECTORY "${include}")
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${name}" "${include}/${name}" SYMBOLIC)
  add_library(${target} STATIC ${FLOOR_SOURCES})
  target_include_directories(${target} PUBLIC "${include}")
  list(TRANSFORM FLOOR_DEPENDS PREPEND meshtrain_)
  target_link_libraries(${target} PUBLIC ${FLOOR_DEPENDS} ${FLOOR_LINK} meshtrain_torch PRIVATE meshtrain_flags)
  target_precompile_headers(${target} REUSE_FROM meshtrain_pch)
  meshtrain_unity(${target})
endfunction()

# meshtrain_unity(TARGET): compiles a dozen of its files as one, unless MESHTRAIN_UNITY is off.
function(meshtrain_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD "${MESHTRAIN_UNITY}" UNITY_BUILD_BATCH_SIZE 12)
endfunction()

# meshtrain_opens_plugins(TARGET): a program in which plug-ins find what they need of the floors. It holds the whole of
# mesh/, for parts that only a plug-in calls.
function(meshtrain_opens_plugins target)
  set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON DEFINE_SYMBOL "")
  target_link_options(${target} PRIVATE
    "LINKER:--whole-archive,$<TARGET_FILE:meshtrain_mesh>,--no-whole-archive")
endfunction()
