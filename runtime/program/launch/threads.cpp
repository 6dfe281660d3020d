#include "runtime/program/launch/threads.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <tuple>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

/// The numbers of ranks of one host that share a mask, and that share a limited group.
class Sharers {
 public:
  Sharers(const std::vector<Processors>& processors, const HostMap& hosts) : hosts_(hosts) {
    for (size_t rank = 0; rank < processors.size(); ++rank) {
      ++masks_[{hosts.host_of(static_cast<int64_t>(rank)), processors[rank].mask}];
      ++groups_[{hosts.host_of(static_cast<int64_t>(rank)), processors[rank].quota_group}];
    }
  }

  int64_t of_mask(const Processors& processors, size_t rank) const {
    return masks_.at({hosts_.host_of(static_cast<int64_t>(rank)), processors.mask});
  }
  int64_t of_group(const Processors& processors, size_t rank) const {
    return groups_.at({hosts_.host_of(static_cast<int64_t>(rank)), processors.quota_group});
  }

 private:
  const HostMap& hosts_;
  std::map<std::pair<int, int64_t>, int64_t> masks_, groups_;
};

struct Share {
  int64_t threads;
  std::string reason;
};

Share share_of(const Processors& own, size_t rank, const Sharers& sharers) {
  if (own.asked > 0) return {own.asked, "set by OMP_NUM_THREADS"};
  const auto shared = [](int64_t ranks) { return ranks == 1 ? "" : " that " + counted(ranks, "rank") + " share"; };
  const int64_t of_mask = sharers.of_mask(own, rank), of_group = sharers.of_group(own, rank);
  const int64_t cores = own.cores / of_mask, allowed = own.millicores / (1000 * of_group);
  if (own.millicores == 0 || cores <= allowed) {
    return {std::max<int64_t>(cores, 1), counted(own.cores, "core") + shared(of_mask)};
  }
  std::string time = std::to_string(own.millicores / 1000);
  if (own.millicores % 1000 != 0) time += "." + std::to_string(own.millicores % 1000 + 1000).substr(1, 1);
  return {std::max<int64_t>(allowed, 1), "a limit of " + time + (own.millicores == 1000 ? " core" : " cores") +
                                             " on processor time (cpu.max)" + shared(of_group)};
}

std::vector<Share> shares_of(const std::vector<Processors>& processors, const HostMap& hosts) {
  const Sharers sharers(processors, hosts);
  std::vector<Share> shares;
  for (size_t rank = 0; rank < processors.size(); ++rank) shares.push_back(share_of(processors[rank], rank, sharers));
  return shares;
}

}  // namespace

int64_t Processors::usable() const {
  return std::max<int64_t>(millicores == 0 ? cores : std::min(cores, millicores / 1000), 1);
}

int asked_threads(const char* value) {
  const std::string_view text = value == nullptr ? "" : value;
  constexpr std::string_view kBlank = " \t\r\n\v\f";
  if (text.find_first_not_of(kBlank) == std::string_view::npos) return 0;
  int first = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view part = text.substr(begin, end - begin);
    part.remove_prefix(std::min(part.find_first_not_of(kBlank), part.size()));
    part = part.substr(0, part.find_last_not_of(kBlank) + 1);
    int number = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error != std::errc() || stop != part.data() + part.size() || number < 1) {
      throw InputError("OMP_NUM_THREADS is \"" + std::string(text) +
                       "\": set it to a number of threads, 1 or more (or several with commas, of which the first "
                       "counts), or unset it");
    }
    if (begin == 0) first = number;
    begin = end + 1;
  }
  return first;
}

Processors find_processors(const Cgroups& cgroups) {
  Processors found;
  std::vector<cpu_set_t> mask(1);
  // The kernel refuses a set that is smaller than its own.
  while (sched_getaffinity(0, mask.size() * sizeof(cpu_set_t), mask.data()) != 0 && mask.size() < 1024) {
    mask.resize(2 * mask.size());
  }
  const size_t bytes = mask.size() * sizeof(cpu_set_t);
  found.cores = std::max(CPU_COUNT_S(bytes, mask.data()), 1);
  const std::string_view bits(reinterpret_cast<const char*>(mask.data()), bytes);
  found.mask = static_cast<int64_t>(std::hash<std::string_view>{}(bits));
  if (const std::optional<Cgroups::Quota> quota = cgroups.processors()) {
    found.millicores = std::max<int64_t>(static_cast<int64_t>(quota->processors * 1000), 1);
    found.quota_group = static_cast<int64_t>(quota->group);
  }
  return found;
}

std::vector<int> share_threads(const std::vector<Processors>& processors, const HostMap& hosts) {
  std::vector<int> threads;
  for (const Share& share : shares_of(processors, hosts)) threads.push_back(static_cast<int>(share.threads));
  return threads;
}

std::string describe_threads(const std::vector<Processors>& processors, const HostMap& hosts) {
  const std::vector<Share> shares = shares_of(processors, hosts);
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end(),
                                                 [](const Share& a, const Share& b) { return a.threads < b.threads; });
  const bool differ = least->threads != most->threads;
  std::string text = counted(shares[0].threads, "thread");
  if (shares.size() > 1) text += differ ? " on rank 0" : " a rank";
  text += ": " + shares[0].reason;
  if (differ) text += "; " + std::to_string(least->threads) + " to " + counted(most->threads, "thread") + " on others";
  return text;
}

std::string set_threads(const Group& world) {
  static_assert(sizeof(Processors) % sizeof(int64_t) == 0);
  constexpr int64_t kNumbers = sizeof(Processors) / sizeof(int64_t);
  Processors own = find_processors();
  agree(world, [&] { own.asked = asked_threads(std::getenv("OMP_NUM_THREADS")); });
  at::Tensor mine = at::empty({1, kNumbers}, at::kLong), all = at::empty({world.size(), kNumbers}, at::kLong);
  std::memcpy(mine.data_ptr(), &own, sizeof own);
  world.all_gather(all, mine).wait();
  std::vector<Processors> processors(static_cast<size_t>(world.size()));
  std::memcpy(processors.data(), all.const_data_ptr(), all.nbytes());
  const HostMap hosts = HostMap::of(world);
  at::set_num_threads(share_threads(processors, hosts)[static_cast<size_t>(world.rank())]);
  return describe_threads(processors, hosts);
}

}  // namespace meshtrain
