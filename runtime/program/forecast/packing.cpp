#include "runtime/program/forecast/packing.h"

#include <algorithm>

#include "runtime/training/data/mixture.h"

namespace meshtrain {
namespace {

/// Samples and tokens that are read at most.
constexpr int64_t kMostSamples = 4096, kMostTokens = 1 << 24;

bool has_documents(const Recipe& recipe) {
  return std::ranges::any_of(recipe.data.sources(), [](const auto& source) { return source.documents.has_value(); });
}

/// Returns the pairs within documents that begin at `starts`, over those of one of `length` tokens.
double share_of_pairs(const std::vector<int64_t>& starts, int64_t length) {
  double pairs = 0;
  int64_t begin = 0;
  const auto add = [&](int64_t end) {
    const auto tokens = static_cast<double>(end - begin);
    pairs += tokens * (tokens + 1);
    begin = end;
  };
  for (const int64_t start : starts) add(start);
  add(length);
  return pairs / (static_cast<double>(length) * static_cast<double>(length + 1));
}

bool gathers(ShardingMode mode) {
  return mode == ShardingMode::FullShard;
}

}  // namespace

PackedSamples::PackedSamples(const Recipe& recipe) {
  if (!has_documents(recipe)) return;
  const int64_t length = recipe.train.sequence_length;
  const Mixture samples(recipe.data, length, recipe.model.shape.vocab_size, static_cast<uint64_t>(recipe.train.seed));
  const int64_t count = std::min({kMostSamples, std::max<int64_t>(kMostTokens / length, 1), samples.num_samples()});
  std::vector<int64_t> inputs(static_cast<size_t>(length)), labels(inputs.size());
  for (int64_t g = 0; g < count; ++g) {
    pairs_.push_back(share_of_pairs(samples.read(g, inputs.data(), labels.data()), length));
  }
}

void PackedSamples::apply(TimeForecast& time, const Recipe& recipe, const Decisions& decisions) const {
  if (pairs_.empty()) return;
  const int64_t dp = decisions.layout.size(kDataAxis), of_rank = recipe.train.global_batch / dp;
  const int64_t at_once = gathers(decisions.sharding.mode) ? recipe.train.micro_batch : of_rank;
  const auto count = static_cast<int64_t>(pairs_.size());
  const int64_t steps = std::max<int64_t>(count / recipe.train.global_batch, 1);
  double mean = 0, most = 0;  // sums over what ranks compute before they wait for each other
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t first = 0; first < of_rank; first += at_once) {
      double sum = 0, largest = 0;
      for (int64_t rank = 0; rank < dp; ++rank) {
        double of_this = 0;
        for (int64_t i = 0; i < at_once; ++i) {
          of_this +=
              pairs_[static_cast<size_t>((step * recipe.train.global_batch + rank * of_rank + first + i) % count)];
        }
        sum += of_this;
        largest = std::max(largest, of_this);
      }
      mean += sum / static_cast<double>(dp);
      most += largest;
    }
  }
  const auto samples = static_cast<double>(steps * of_rank);
  const double attention = time.attention;
  const double computing = time.computing();
  time.attention = attention * mean / samples;
  if (computing > 0) time.bubble *= time.computing() / computing;
  time.imbalance = attention * (most - mean) / samples;
}

}  // namespace meshtrain
