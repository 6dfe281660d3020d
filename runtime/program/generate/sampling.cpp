#include "runtime/program/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "mesh/base/philox.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

/// Returns the k-th largest of `values`, k at least 1 and at most all.
double kth_largest(std::vector<double> values, int64_t k) {
  const auto kth = values.begin() + (k - 1);
  std::nth_element(values.begin(), kth, values.end(), std::greater<>());
  return *kth;
}

/// Returns the most likely of `all`, as many as it takes for their weights to reach `share` of the sum.
std::vector<Candidate> nucleus(std::vector<Candidate> all, double share) {
  double total = 0, taken = 0;
  for (const Candidate& candidate : all) total += candidate.weight;
  const auto after = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.id > b.id;
  };
  std::make_heap(all.begin(), all.end(), after);
  auto end = all.end();
  do {
    std::pop_heap(all.begin(), end, after);
    taken += (--end)->weight;
  } while (taken < share * total && end != all.begin());
  all.erase(all.begin(), end);
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  return all;
}

}  // namespace

std::vector<double> values_of(const at::Tensor& logits) {
  const at::Tensor wide = logits.to(at::kCPU, at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

std::vector<Candidate> candidates(const std::vector<double>& logits, const SamplingOptions& options) {
  const bool some = options.top_k > 0 && options.top_k < std::ssize(logits);
  const double least = some ? kth_largest(logits, options.top_k) : -std::numeric_limits<double>::infinity();
  const double most = *std::max_element(logits.begin(), logits.end());
  std::vector<Candidate> left;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] < least || std::isinf(logits[id])) continue;
    left.push_back({static_cast<int64_t>(id), std::exp((logits[id] - most) / options.temperature)});
  }
  if (options.top_p < 1) left = nucleus(std::move(left), options.top_p);
  std::erase_if(left, [&](const Candidate& each) { return each.weight < options.min_p; });  // the likeliest has 1
  return left;
}

int64_t draw(const std::vector<Candidate>& candidates, double uniform) {
  double total = 0, passed = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  int64_t last = candidates.front().id;  // that can be drawn
  for (const Candidate& candidate : candidates) {
    passed += candidate.weight;
    if (candidate.weight > 0) last = candidate.id;
    if (passed > uniform * total) break;
  }
  return last;
}

double uniform_at(uint64_t seed, uint64_t sequence, uint64_t position) {
  const Counter bits = philox({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                               static_cast<uint32_t>(sequence), static_cast<uint32_t>(sequence >> 32)},
                              philox_key(seed, "generate"));
  return static_cast<double>((uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1p-53;
}

}  // namespace meshtrain
