#include "mesh/base/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "mesh/base/cgroup.h"

namespace meshtrain {

int64_t available_host_memory() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream memory("/proc/meminfo");
  for (std::string word; memory >> word;) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && memory >> kib) available = kib << 10;
  }
  return std::min(available, Cgroups().memory().value_or(available));
}

int64_t available_address_space() {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  std::ifstream sizes("/proc/self/statm");
  int64_t pages = 0;
  if (!(sizes >> pages)) return kNoLimit;
  return std::max<int64_t>(static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGE_SIZE), 0);
}

}  // namespace meshtrain
