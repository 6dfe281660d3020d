#include "runtime/program/generate/generate.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "mesh/agree.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// The outcome of one forward of a row.
enum class Outcome : int64_t {
  Nothing,    ///< the row waited, or a part of its prompt is left
  Continues,  ///< it chose a token, and the text continues
  EndsByLength,
  EndsByToken,
  EndsByText,
  Failed,
};

Outcome outcome_of(const std::optional<TextEnd>& end) {
  if (!end) return Outcome::Continues;
  switch (*end) {
    case TextEnd::Length:
      return Outcome::EndsByLength;
    case TextEnd::Token:
      return Outcome::EndsByToken;
    case TextEnd::Text:
      return Outcome::EndsByText;
  }
  return Outcome::EndsByLength;
}

std::optional<TextEnd> end_of(Outcome outcome) {
  if (outcome == Outcome::EndsByLength) return TextEnd::Length;
  if (outcome == Outcome::EndsByToken) return TextEnd::Token;
  if (outcome == Outcome::EndsByText) return TextEnd::Text;
  return std::nullopt;
}

/// The report of a row on one forward.
struct Report {
  Outcome outcome = Outcome::Nothing;
  int64_t token = 0;
};

/// Returns the reports of all rows, by dp coordinate. The tp ranks of a row have the same report, so the groups of
/// `rows` get the same result without communication between them.
std::vector<Report> exchange(const Group& rows, const Report& own) {
  const at::Tensor sent = at::tensor({static_cast<int64_t>(own.outcome), own.token}, at::kLong);
  at::Tensor all = at::empty({2 * rows.size()}, at::kLong);
  rows.with_purpose("generate").all_gather(all, sent).wait();
  std::vector<Report> reports;
  const int64_t* value = all.const_data_ptr<int64_t>();
  for (int row = 0; row < rows.size(); ++row, value += 2) reports.push_back({static_cast<Outcome>(value[0]), value[1]});
  return reports;
}

/// The text that a row generates, as every rank knows it.
struct RowText {
  size_t prompt;
  Clock::time_point begin = Clock::now(), first_token = begin;
  GenerationResult result = {};
};

/// An error that ends the generation.
struct Failure {
  size_t prompt;
  std::string error;
};

// Gathers of weights are collective over the rows, so all rows must make the same number of forwards. In each turn of
// the loop every row computes one forward or waits for one; then all ranks learn the outcomes of all rows. The next
// decisions (which row takes which prompt, whether there is another forward) follow from these outcomes alone, so they
// are the same on all ranks.
class Rows {
 public:
  Rows(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts,
       const std::function<GenerateOptions(size_t)>& options_of, const GenerationEvents& events)
      : model_(model),
        prompts_(prompts),
        options_of_(options_of),
        events_(events),
        work_(static_cast<size_t>(model.rows().size())) {}

  void run() {
    while (distribute()) {
      const std::vector<Report> reports = exchange(model_.rows(), advance());
      for (size_t row = 0; row < reports.size(); ++row) take(static_cast<int>(row), reports[row]);
    }
    if (failure_) throw AgreedError("prompt " + std::to_string(failure_->prompt + 1) + ": " + failure_->error);
  }

 private:
  /// Gives prompts to the rows that are free. After a failure there are no new ones, and only prompts before the one
  /// that failed are waited for: their texts come before the error, as if one prompt followed the other. Returns false
  /// when nothing is left to do.
  bool distribute() {
    bool any = false;
    for (size_t row = 0; row < work_.size(); ++row) {
      if (!work_[row] && next_ < prompts_.size() && !failure_) begin(static_cast<int>(row), next_++);
      any = any || (work_[row] && (!failure_ || work_[row]->prompt < failure_->prompt));
    }
    return any;
  }

  void begin(int row, size_t prompt) {
    work_[static_cast<size_t>(row)] = RowText{prompt};
    if (events_.begins) events_.begins(prompt, row);
    if (row != model_.rows().rank()) return;
    own_ = std::make_unique<Continuation>(model_, prompts_[prompt], prompt, options_of_(prompt));
  }

  /// Makes one forward of this rank's row.
  Report advance() {
    if (!own_) {
      model_.wait();
      return {};
    }
    try {
      const std::optional<int64_t> token = own_->advance();
      return token ? Report{outcome_of(own_->end()), *token} : Report{};
    } catch (const AgreedError& error) {  // after the forward
      error_ = error.what();
      return {Outcome::Failed};
    }
  }

  /// Makes the row ready for another prompt.
  void free(int row) {
    work_[static_cast<size_t>(row)].reset();
    if (row == model_.rows().rank()) own_.reset();
  }

  /// Ends the row's prompt by the error of its ranks.
  void fail(int row) {
    const size_t prompt = work_[static_cast<size_t>(row)]->prompt;
    const std::string error = broadcast_text(model_.rows(), error_, row);
    if (!failure_ || prompt < failure_->prompt) failure_ = Failure{prompt, error};
    free(row);
  }

  void take(int row, const Report& report) {
    if (report.outcome == Outcome::Nothing) return;
    if (report.outcome == Outcome::Failed) return fail(row);
    std::optional<RowText>& work = work_[static_cast<size_t>(row)];
    GenerationResult& result = work->result;
    result.tokens.push_back(report.token);
    if (result.tokens.size() == 1) work->first_token = Clock::now();
    if (events_.token) events_.token(work->prompt, report.token);
    const std::optional<TextEnd> end = end_of(report.outcome);
    if (!end) return;
    result.end = *end;
    result.prefill_seconds = seconds_between(work->begin, work->first_token);
    result.decode_seconds = seconds_between(work->first_token, Clock::now());
    if (events_.ends) events_.ends(work->prompt, row, result);
    free(row);
  }

  LanguageModel& model_;
  const std::vector<std::vector<int64_t>>& prompts_;
  const std::function<GenerateOptions(size_t)>& options_of_;
  const GenerationEvents& events_;
  std::vector<std::optional<RowText>> work_;  // by row
  size_t next_ = 0;                           // the first prompt that no row has taken
  std::unique_ptr<Continuation> own_;         // of this rank's row
  std::string error_;                         // of this rank's row
  std::optional<Failure> failure_;
};

}  // namespace

void generate(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts,
              const std::function<GenerateOptions(size_t)>& options_of, const GenerationEvents& events) {
  Rows(model, prompts, options_of, events).run();
}

}  // namespace meshtrain
