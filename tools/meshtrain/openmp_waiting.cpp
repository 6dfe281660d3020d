// OpenMP threads that spin for microseconds while they wait, and then sleep. By default they spin for milliseconds: on
// a busy machine, where the thread they wait for has no core, two threads take several times as long as one. Threads
// that never spin take three times as long to generate from a small model. OpenMP reads the number of spins when its
// library is loaded, so the program sets it and starts again, before any library is initialised.
#include <sched.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace {

// The sanitizers are not ready before their library is initialised.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

constexpr size_t kMostVariables = 16'384;

/// Returns whether `entry`, "NAME=VALUE", sets `name`.
bool sets(const char* entry, const char* name) {
  const size_t length = std::strlen(name);
  return std::strncmp(entry, name, length) == 0 && entry[length] == '=';
}

/// Returns whether this process may have several OpenMP threads whose way of waiting nobody has chosen.
bool is_open(char** environment, size_t count) {
  bool is_number_set = false;
  for (size_t i = 0; i < count; ++i) {
    if (sets(environment[i], "OMP_WAIT_POLICY") || sets(environment[i], "GOMP_SPINCOUNT")) return false;
    if (std::strcmp(environment[i], "OMP_NUM_THREADS=1") == 0) return false;
    is_number_set = is_number_set || sets(environment[i], "OMP_NUM_THREADS");
  }
  cpu_set_t cores;
  return is_number_set || sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) > 1;
}

/// Starts this program again with GOMP_SPINCOUNT=3000. Where that is not possible it continues as it is.
void spin_briefly(int, char** arguments, char** environment) {
  size_t count = 0;
  while (environment[count] != nullptr) ++count;
  // Without an interpreter's address the dynamic linker was started by hand, and is the program that would start again.
  const auto* path = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (count >= kMostVariables || path == nullptr || getauxval(AT_BASE) == 0 || !is_open(environment, count)) return;
  static char* variables[kMostVariables + 2];
  static char spins[] = "GOMP_SPINCOUNT=3000";
  std::memcpy(variables, environment, count * sizeof *variables);
  variables[count] = spins;
  execve(path, arguments, variables);
}

[[gnu::used, gnu::section(".preinit_array")]] void (*const start)(int, char**, char**) = spin_briefly;

#endif

}  // namespace
