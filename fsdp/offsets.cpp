#include "fsdp/offsets.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace meshtrain {
namespace {

/// The lowest offset at which `size` bytes are free of the `taken` ranges.
int64_t lowest_free(std::vector<std::pair<int64_t, int64_t>> taken, int64_t size) {
  std::sort(taken.begin(), taken.end());
  int64_t offset = 0;
  for (const auto& [begin, end] : taken) {
    if (offset + size <= begin) break;
    offset = std::max(offset, end);
  }
  return offset;
}

/// Returns for each tenant the number of earlier tenants whose size is above 0.
std::vector<int64_t> positions_of(const std::vector<Tenant>& tenants) {
  std::vector<int64_t> positions(tenants.size());
  for (size_t i = 1; i < tenants.size(); ++i) positions[i] = positions[i - 1] + (tenants[i - 1].size > 0 ? 1 : 0);
  return positions;
}

/// Returns offsets for a reach of 1. Tenants lie in turn at the beginning and at the end of the memory; those that stay
/// lie before this memory.
Offsets at_both_ends(const std::vector<Tenant>& tenants) {
  Offsets assigned{std::vector<int64_t>(tenants.size()), 0};
  int64_t begin = 0, size = 0, before = 0;
  for (size_t i = 0; i < tenants.size(); ++i) {
    const Tenant& tenant = tenants[i];
    if (tenant.size == 0) continue;
    if (tenant.always) assigned.offsets[i] = begin, begin += tenant.size;
    size = std::max(size, tenant.always ? 0 : before + tenant.size);
    before = tenant.always ? 0 : tenant.size;
  }
  assigned.total = begin + size;
  const std::vector<int64_t> positions = positions_of(tenants);
  for (size_t i = 0; i < tenants.size(); ++i) {
    const Tenant& tenant = tenants[i];
    if (tenant.size == 0 || tenant.always) continue;
    assigned.offsets[i] = positions[i] % 2 == 0 ? begin : assigned.total - tenant.size;
  }
  return assigned;
}

}  // namespace

Offsets assign_offsets(const std::vector<Tenant>& tenants, int64_t reach) {
  if (reach == 1) return at_both_ends(tenants);
  std::vector<int64_t> order(tenants.size()), done;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::pair(tenants[a].always, tenants[a].size) > std::pair(tenants[b].always, tenants[b].size);
  });
  const std::vector<int64_t> position = positions_of(tenants);
  Offsets assigned{std::vector<int64_t>(tenants.size()), 0};
  for (const int64_t tenant : order) {
    if (tenants[tenant].size == 0) continue;
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const int64_t other : done) {
      if (!tenants[other].always && std::abs(position[other] - position[tenant]) > reach) continue;
      taken.emplace_back(assigned.offsets[other], assigned.offsets[other] + tenants[other].size);
    }
    assigned.offsets[tenant] = lowest_free(std::move(taken), tenants[tenant].size);
    assigned.total = std::max(assigned.total, assigned.offsets[tenant] + tenants[tenant].size);
    done.push_back(tenant);
  }
  return assigned;
}

}  // namespace meshtrain
