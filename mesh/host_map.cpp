#include "mesh/host_map.h"

#include <unistd.h>

#include <map>

namespace meshtrain {

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "this host";
}

HostMap::HostMap(const std::vector<int>& hosts) {
  std::map<int, int> numbers;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [number, is_new] = numbers.try_emplace(hosts[rank], static_cast<int>(numbers.size()));
    if (is_new) ranks_.emplace_back();
    std::vector<int>& ranks = ranks_[static_cast<size_t>(number->second)];
    hosts_.push_back(number->second);
    local_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
}

}  // namespace meshtrain
