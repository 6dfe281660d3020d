#include "context_parallel/running_attention.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>

namespace meshtrain {

void RunningAttention::add(int64_t query, Attended block) {
  const auto [place, first] = partials_.try_emplace(query, block);
  if (first) return;
  Attended& merged = place->second;
  if (merged.lse.sizes() != block.lse.sizes()) {
    throw std::logic_error("attention: two blocks of queries from " + std::to_string(query) + " on differ in length");
  }
  const at::ScalarType dtype = block.lse.scalar_type();
  const at::Tensor share = at::sigmoid(block.lse - merged.lse).unsqueeze_(-1);  // of the new keys in the sum of both
  merged.out = merged.out.to(dtype).lerp_(block.out.to(dtype), share);
  merged.lse = at::logaddexp(merged.lse, block.lse);
}

void RunningAttention::finish(const at::Tensor& out, const at::Tensor& lse) const {
  int64_t done = 0;
  for (const auto& [query, partial] : partials_) {
    if (query != done) break;
    const int64_t size = partial.lse.size(2);
    out.narrow(2, query, size).copy_(partial.out);
    lse.narrow(2, query, size).copy_(partial.lse);
    done += size;
  }
  if (done != out.size(2)) {
    throw std::logic_error("attention: query " + std::to_string(done) + " of " + std::to_string(out.size(2)) +
                           " has had no key");
  }
}

}  // namespace meshtrain
