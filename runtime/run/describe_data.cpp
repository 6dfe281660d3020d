#include "runtime/run/describe_data.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "runtime/telemetry/console.h"

namespace meshtrain {

int64_t samples_of_run(const TrainRecipe& train, const TrainingState& state) {
  const int64_t most = std::numeric_limits<int64_t>::max() / train.sequence_length;
  const int64_t steps = std::max<int64_t>(0, train.steps - state.step);
  const bool too_many = steps > (most - state.num_samples) / train.global_batch;
  return too_many ? most : state.num_samples + steps * train.global_batch;
}

std::vector<std::string> describe_data(const Recipe& recipe, const Mixture& data, int64_t num_samples,
                                       const Evaluation* evaluation) {
  const int64_t length = recipe.train.sequence_length;
  const std::vector<int64_t> counts = data.counts(num_samples);
  std::vector<std::string> lines;
  for (size_t i = 0; i < counts.size(); ++i) {
    const Dataset& source = data.sources()[i];
    const double samples = static_cast<double>(counts[i]);
    const std::string share =
        counts.size() == 1 ? ""
                           : fmt::format(", {:.1f} % of the run", 100 * samples / static_cast<double>(num_samples));
    lines.push_back(fmt::format("data: {}: {} samples, {} tokens, {:.2f} epochs{}", source.path().string(),
                                with_separators(counts[i]), with_separators(counts[i] * length),
                                samples / static_cast<double>(source.num_samples()), share));
  }
  const int64_t positions = recipe.model.shape.max_position_embeddings;
  if (positions > 0 && length > positions) {
    lines.push_back(fmt::format("warning: train.sequence_length {} is beyond the model's max_position_embeddings {}",
                                length, positions));
  }
  const std::filesystem::path& tokenizer = recipe.data.tokenizer;
  std::error_code unreadable;
  if (!tokenizer.empty() && tokenizer != "bytes" && !std::filesystem::exists(tokenizer, unreadable)) {
    lines.push_back(
        fmt::format("warning: data.tokenizer: there is no {}: generate will need --tokenizer", tokenizer.string()));
  }
  if (evaluation == nullptr) return lines;
  const int64_t every = recipe.evaluate.every;
  lines.push_back(fmt::format("held out: {}: {} samples, {} tokens, after {}", recipe.evaluate.tokens.string(),
                              with_separators(evaluation->num_samples()),
                              with_separators(evaluation->num_samples() * length),
                              every > 0 ? "every " + with_separators(every) + " steps and the last" : "the last step"));
  for (size_t i = 0; i < counts.size(); ++i) {
    std::error_code ignored;
    if (!std::filesystem::equivalent(data.sources()[i].path(), recipe.evaluate.tokens, ignored)) continue;
    lines.push_back(fmt::format("warning: evaluate.tokens and {}.tokens are the same file: nothing of it is held out",
                                recipe.data.source_key(i)));
    break;
  }
  return lines;
}

}  // namespace meshtrain
