# Language standard, warnings, sanitizers, ccache.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(MESHTRAIN_COLD -Og)   # for code that takes no measurable time; with sanitizers it compiles in 60 % of -O1's time
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(meshtrain_flags INTERFACE)
# -fopenmp: at::parallel_for is serial in code compiled without it.
# -fPIC for programs too (CMake would give them -fPIE): they share the libraries' precompiled headers.
target_compile_options(meshtrain_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Winvalid-pch -fPIC -fopenmp
                                                 -fpch-preprocess)
# Lets GCC collect garbage from 1 GiB on. The default, 128 MiB, is less than a precompiled header needs.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(meshtrain_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1048576>)
endif()
# NDEBUG as in LibTorch: without it RecordFunction::inputs() asserts a value that only LibTorch's debug build sets.
# AT_PER_OPERATOR_HEADERS: LibTorch's headers include only the operators that they call (mesh/device/aten.h).
target_compile_definitions(meshtrain_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:NDEBUG> $<$<COMPILE_LANGUAGE:CXX>:AT_PER_OPERATOR_HEADERS>)
target_link_options(meshtrain_flags INTERFACE -fopenmp)
if(MESHTRAIN_SANITIZE STREQUAL "address")
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # NDEBUG turns off nlohmann::json's checks, such as that of a missing key of a constant object.
  target_compile_options(meshtrain_flags INTERFACE "-DJSON_ASSERT(x)=((x)?void():__builtin_trap())")
  # LibTorch and Open MPI are built without type information for these two checks.
  list(APPEND sanitizers -fno-sanitize=vptr)
  # Under the address sanitizer gcc 12 reports members of std::regex as uninitialised (GCC bug 105562).
  list(APPEND sanitizers -Wno-maybe-uninitialized)
elseif(MESHTRAIN_SANITIZE STREQUAL "thread")
  # The thread sanitizer does not support fences. LibTorch's headers have them; our threads do not rely on them.
  set(sanitizers -fsanitize=thread -Wno-tsan)
elseif(MESHTRAIN_SANITIZE)
  message(FATAL_ERROR "MESHTRAIN_SANITIZE: ${MESHTRAIN_SANITIZE}: use address, thread or nothing")
endif()
target_compile_options(meshtrain_flags INTERFACE ${sanitizers})
target_link_options(meshtrain_flags INTERFACE ${sanitizers})
