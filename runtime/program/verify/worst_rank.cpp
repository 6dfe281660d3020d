#include "runtime/program/verify/worst_rank.h"

#include <limits>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns one member of `all` as a tensor [n].
at::Tensor field(const std::vector<Measurement>& all, double Measurement::*member) {
  at::Tensor values = at::empty({static_cast<int64_t>(all.size())}, at::kDouble);
  for (size_t i = 0; i < all.size(); ++i) values.data_ptr<double>()[i] = all[i].*member;
  return values;
}

at::Tensor largest(const Group& group, at::Tensor values) {
  group.all_reduce(values, Reduce::Max).wait();
  return values;
}

}  // namespace

Measurement Measurement::none() {
  return {.difference = -kInfinity, .value = -kInfinity};
}

bool Measurement::exists() const {
  return difference != -kInfinity;
}

std::vector<Measurement> worst_of_ranks(const Group& group, const std::vector<Measurement>& all) {
  const at::Tensor differences = field(all, &Measurement::difference), values = field(all, &Measurement::value);
  const at::Tensor ranked = differences.nan_to_num(kInfinity, kInfinity, -kInfinity);
  at::Tensor worst = ranked.eq(largest(group, ranked.clone()));
  const at::Tensor own =
      field(all, &Measurement::own).nan_to_num(kInfinity, kInfinity, 0).masked_fill(~worst, -kInfinity);
  worst = worst.logical_and(own.eq(largest(group, own.clone())));
  const int64_t size = group.size();  // chooses the lowest rank among the worst
  const at::Tensor code = worst.to(at::kLong).mul_(size - group.rank());
  const at::Tensor winner = largest(group, code.clone());
  const at::Tensor others = winner.ne(size - group.rank());
  const at::Tensor found = largest(group, at::stack({differences, values}).masked_fill_(others, -kInfinity));

  std::vector<Measurement> result(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    result[i].difference = found.data_ptr<double>()[i];
    result[i].value = found.data_ptr<double>()[all.size() + i];
    result[i].rank = size - winner.data_ptr<int64_t>()[i];
  }
  return result;
}

}  // namespace meshtrain
