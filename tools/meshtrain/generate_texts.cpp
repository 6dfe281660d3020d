#include "tools/meshtrain/generate_texts.h"

#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "runtime/program/generate/generate.h"
#include "runtime/program/generate/stop_strings.h"
#include "runtime/program/watch/phase.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kWait = "the wait for the texts of other dp ranks";

/// Returns a function that searches for strings that end a text. The first tp rank, which has the tokenizer, searches
/// and tells the others, whose `tokenizer` is null.
std::function<bool(int64_t)> search(const std::vector<std::string>& strings, const std::vector<int64_t>& prompt,
                                    const std::shared_ptr<const Tokenizer>& tokenizer, const Group& row) {
  const auto found = row.rank() == 0 ? std::make_shared<StopStrings>(*tokenizer, strings, prompt) : nullptr;
  return [found, tokenizer, row](int64_t token) {
    at::Tensor ends = at::full({1}, found && found->add(token) ? 1 : 0, at::kLong);
    row.broadcast(ends, 0).wait();
    return ends.item<int64_t>() != 0;
  };
}

/// The progress of `meshtrain generate`: on one row that of each text in turn, on several rows that of all texts
/// together. A text that is printed token by token needs no progress.
class TextProgress {
 public:
  TextProgress(const GenerateRequest& request, int num_rows) : request_(request), per_text_(num_rows == 1) {
    if (per_text_) return;
    const auto total = std::accumulate(request.max_tokens.begin(), request.max_tokens.end(), int64_t{0});
    progress_.emplace("texts of " + counted(request.prompts.size(), "prompt"), total, "tokens");
  }

  void begin(size_t prompt) {
    if (!per_text_) return;
    progress_.emplace("text of prompt " + std::to_string(prompt + 1) + " of " + std::to_string(request_.prompts.size()),
                      request_.max_tokens[prompt], "tokens");
  }
  void add() { progress_->advance(); }
  void end() {
    if (per_text_) progress_.reset();
  }

 private:
  const GenerateRequest& request_;
  bool per_text_;
  std::optional<Progress> progress_;
};

}  // namespace

void generate_texts(const GenerateRequest& request, int64_t trained_length, LanguageModel& model,
                    const std::shared_ptr<const Tokenizer>& tokenizer, const DeviceMesh& mesh,
                    GeneratedOutput* output) {
  const Group& rows = model.rows();
  std::optional<TextProgress> progress;
  if (output && !output->streams()) progress.emplace(request, rows.size());
  std::optional<Phase> phase(std::in_place, kWait);
  size_t num_tokens = 0;
  const auto options_of = [&](size_t i) {
    GenerateOptions options{.max_tokens = request.max_tokens[i],
                            .stop = request.stop,
                            .sampling = request.sampling,
                            .rules = request.rules};
    if (!request.stop_strings.empty()) {
      options.ends_text = search(request.stop_strings, request.prompts[i], tokenizer, mesh.group(kTensorAxis));
    }
    return options;
  };
  const GenerationEvents events{.begins =
                                    [&](size_t i, int row) {
                                      if (row == rows.rank())
                                        phase.emplace("the text of prompt " + std::to_string(i + 1));
                                      if (output) output->begin(i, request.prompts[i]);
                                      if (progress) progress->begin(i);
                                    },
                                .token =
                                    [&](size_t, int64_t token) {
                                      ++num_tokens;
                                      if (output) output->add(token);
                                      if (progress) progress->add();
                                    },
                                .ends =
                                    [&](size_t i, int row, const GenerationResult& generated) {
                                      if (row == rows.rank()) phase.emplace(kWait);
                                      if (progress) progress->end();
                                      if (!output) return;
                                      const std::vector<int64_t>& prompt = request.prompts[i];
                                      output->end(i, prompt, generated);
                                      if (static_cast<int64_t>(prompt.size()) > trained_length) return;
                                      warn_of_length("the text of prompt " + std::to_string(i + 1),
                                                     prompt.size() + generated.tokens.size(), trained_length);
                                    }};
  const Clock::time_point start = Clock::now();
  generate(model, request.prompts, options_of, events);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (output && rows.size() > 1) tell_total(request.prompts.size(), num_tokens, seconds, rows.size());
}

}  // namespace meshtrain
