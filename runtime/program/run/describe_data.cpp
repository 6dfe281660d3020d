#include "runtime/program/run/describe_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "mesh/base/size_text.h"
#include "runtime/program/recipe/check_data.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/training/data/check_tokens.h"
#include "runtime/training/transformer/batch_growth.h"

namespace meshtrain {

int64_t samples_of_run(const TrainRecipe& train, const TrainingState& state) {
  const int64_t most = std::numeric_limits<int64_t>::max() / train.sequence_length;
  const int64_t steps = std::max<int64_t>(0, train.steps - state.step);
  return samples_after(train, state.num_samples, steps, most);
}

std::string describe_samples(const Mixture& data, int64_t first, int64_t count) {
  constexpr int kMostRuns = 8;
  std::vector<Mixture::Location> locations;
  for (int64_t g = first; g < first + count; ++g) locations.push_back(data.locate(g));
  std::ranges::sort(locations);
  std::string text;
  int num_runs = 0;
  for (size_t begin = 0, end = 0; begin < locations.size(); begin = end) {
    const Mixture::Location& from = locations[begin];
    for (end = begin + 1; end < locations.size() && locations[end].source == from.source; ++end) {
      if (locations[end].sample > locations[end - 1].sample + 1) break;
    }
    if (++num_runs > kMostRuns) return text + " and " + std::to_string(locations.size() - begin) + " more";
    const bool is_new_file = begin == 0 || locations[begin - 1].source != from.source;
    text += is_new_file ? (begin == 0 ? "" : "; ") + data.sources()[from.source].path().string() + ": sample " : ", ";
    text += std::to_string(from.sample);
    if (locations[end - 1].sample != from.sample) text += " to " + std::to_string(locations[end - 1].sample);
  }
  return text;
}

std::vector<Notice> describe_data(const Recipe& recipe, const Mixture& data, int64_t num_samples,
                                  const Evaluation* evaluation) {
  const int64_t length = recipe.train.sequence_length;
  const std::vector<int64_t> counts = data.counts(num_samples);
  std::vector<Notice> lines;
  const auto warn = [&](std::string line) {
    if (!line.empty()) lines.push_back({std::move(line), true});
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const Dataset& source = data.sources()[i];
    const double samples = static_cast<double>(counts[i]);
    const std::string share =
        counts.size() == 1 ? ""
                           : fmt::format(", {:.1f} % of the run", 100 * samples / static_cast<double>(num_samples));
    lines.push_back({fmt::format("data: {}: {}, {}, {:.2f} epochs{}", source.path().string(),
                                 counted(counts[i], "sample"), counted(counts[i] * length, "token"),
                                 samples / static_cast<double>(source.num_samples()), share)});
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    const MixedSource source = recipe.data.sources()[i];
    const std::string key = recipe.data.source_key(i);
    for (const Wording& warning : {dtype_warning(source, key), layout_warning(source, length, key)}) {
      warn(warning.text());
    }
  }
  for (Notice& line : sidecar_lines(recipe, tokenizer_of(recipe))) lines.push_back(std::move(line));
  if (const std::string growth = describe_growth(recipe.train); !growth.empty()) lines.push_back({growth, false});
  const int64_t positions = recipe.model.shape.max_position_embeddings;
  if (positions > 0 && length > positions) {
    warn(fmt::format("train.sequence_length {} is beyond the model's max_position_embeddings {}", length, positions));
  }
  const std::filesystem::path& tokenizer = recipe.data.tokenizer;
  std::error_code unreadable;
  if (!tokenizer.empty() && tokenizer != "bytes" && !std::filesystem::exists(tokenizer, unreadable)) {
    warn(fmt::format("data.tokenizer: {} does not exist: generate will need --tokenizer", tokenizer.string()));
  }
  if (evaluation == nullptr) return lines;
  for (const Wording& warning :
       {dtype_warning(recipe.evaluate, "evaluate"), layout_warning(recipe.evaluate, length, "evaluate")}) {
    warn(warning.text());
  }
  const int64_t every = recipe.evaluate.every;
  lines.push_back(
      {fmt::format("held out: {}: {}, {}, after {}", recipe.evaluate.tokens.string(),
                   counted(evaluation->num_samples(), "sample"), counted(evaluation->num_samples() * length, "token"),
                   every == 1  ? "every step"
                   : every > 1 ? "every " + counted(every, "step") + " and the last"
                               : "the last step")});
  for (size_t i = 0; i < counts.size(); ++i) {
    std::error_code ignored;
    if (!std::filesystem::equivalent(data.sources()[i].path(), recipe.evaluate.tokens, ignored)) continue;
    warn(fmt::format("evaluate.tokens and {}.tokens are the same file, so the loss is not of held-out tokens",
                     recipe.data.source_key(i)));
    break;
  }
  return lines;
}

}  // namespace meshtrain
