#include "mesh/base/error.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/tokenizer/pattern.h"
#include "runtime/text/tokenizer/pattern_parse.h"
#include "runtime/text/tokenizer/pattern_program.h"

namespace meshtrain {
namespace {

constexpr ptrdiff_t kLongRun = 64;  // bytes

}  // namespace

class Pattern::Search {
 public:
  Search(const Pattern& pattern, std::string_view text, Alternatives& memory)
      : pattern_(pattern),
        instructions_(pattern.program_->instructions.data()),
        sets_(pattern.program_->sets.data()),
        end_(text.data() + text.size()),
        memory_(memory),
        states_(memory.states),
        most_steps_(10'000'000 + 64 * text.size()) {}

  // Returns the end of the match that begins at `at`; nullptr when there is none. Runs from `instruction` to its
  // Accept.
  const char* match(uint32_t instruction, const char* at) {
    const size_t bottom = states_.size();
    while (true) {
      const Step step = forward(instruction, at);
      if (step == Step::Matched) {
        states_.resize(bottom);
        return at;
      }
      do {
        if (states_.size() == bottom) return nullptr;
        count_step();
      } while (!take_state(instruction, at));
    }
  }

 private:
  enum class Step { Matched, Failed };

  void count_step() {
    if (++memory_.steps <= most_steps_) return;
    states_.clear();
    throw InputError("the regular expression " + pattern_.expression_ + " takes more than " +
                     std::to_string(most_steps_) + " backtracking steps in a text of " +
                     std::to_string(memory_.text.size()) + " bytes");
  }

  // Continues with the last state, a loop with one code point less. Returns false when nothing is left of it. Whether a
  // match continues with an instruction at a position depends on these two alone, so that it is tried once.
  bool take_state(uint32_t& instruction, const char*& at) {
    Alternative& last = states_.back();
    instruction = last.instruction;
    at = last.at;
    if (last.low == nullptr) {
      states_.pop_back();
      return true;
    }
    if (last.is_long && !skip_failed(memory_.failed[instruction], last.low, at)) {
      states_.pop_back();
      return false;
    }
    if (at == last.low) {
      states_.pop_back();
    } else {
      last.at = at;
      previous_code_point(last.at);
    }
    return true;
  }

  // Moves `at` before the positions that have failed. Returns false when they reach down to `low`.
  static bool skip_failed(Alternatives::Stretch& failed, const char* low, const char*& at) {
    add_failed(failed, at);
    if (at < failed.begin || failed.end < at) return true;
    if (failed.begin <= low) return false;
    at = failed.begin;
    previous_code_point(at);
    return true;
  }

  // Adds the position after the code point at `at`, from which no match has continued.
  static void add_failed(Alternatives::Stretch& failed, const char* at) {
    next_code_point(at);
    if (failed.begin != nullptr && failed.begin <= at && at <= failed.end) return;
    const char* below = failed.begin;
    if (below != nullptr && at < below) previous_code_point(below);
    if (below != at) failed.end = at;
    failed.begin = at;
  }

  bool has(int32_t set, uint32_t c) const { return sets_[set].has(c); }

  bool is_next(int32_t set, const char* at) const { return at != end_ && has(set, next_code_point(at)); }

  // Follows the instructions until one fails or accepts.
  Step forward(uint32_t& i, const char*& at) {
    while (true) {
      const PatternProgram::Instruction& now = instructions_[i];
      switch (now.kind) {
        case PatternProgram::Kind::One:
          if (at == end_ || !has(now.set, next_code_point(at))) return Step::Failed;
          ++i;
          break;
        case PatternProgram::Kind::Loop:
        case PatternProgram::Kind::Keep:
          if (!loop(now, i, at)) return Step::Failed;
          ++i;
          break;
        case PatternProgram::Kind::Split:
          if (now.set >= 0 && !is_next(now.set, at)) {
            i = now.target;
          } else {
            states_.push_back({now.target, at, nullptr, false});
            ++i;
          }
          break;
        case PatternProgram::Kind::Jump:
          i = now.target;
          break;
        case PatternProgram::Kind::Ahead:
          if ((match(i + 1, at) != nullptr) == now.negated) return Step::Failed;
          i = now.target;
          break;
        case PatternProgram::Kind::Atomic:
          at = match(i + 1, at);
          if (at == nullptr) return Step::Failed;
          i = now.target;
          break;
        case PatternProgram::Kind::Accept:
          return Step::Matched;
      }
    }
  }

  bool loop(const PatternProgram::Instruction& now, uint32_t i, const char*& at) {
    const CodePointSet& set = sets_[now.set];
    const char* const near_end = end_ - at > kLongRun ? at + kLongRun : end_;
    const char* low = at;
    uint32_t count = 0;
    while (count < now.max && at < near_end) {
      const char* next = at;
      if (!set.has(next_code_point(next))) break;
      at = next;
      if (++count <= now.min) low = at;
    }
    if (at >= near_end && at != end_) finish_long_run(now, memory_.runs[i], at, low, count);
    if (count < now.min) return false;
    if (now.kind == PatternProgram::Kind::Loop && at != low) {
      const char* one_less = at;
      previous_code_point(one_less);
      states_.push_back({i + 1, one_less, low, one_less - low >= kLongRun});
    }
    return true;
  }

  // Continues a loop after its first kLongRun bytes. Reuses the end of the run that the loop has found last.
  void finish_long_run(const PatternProgram::Instruction& now, Alternatives::Stretch& run, const char*& at,
                       const char*& low, uint32_t& count) {
    const bool is_endless = now.max == kEndlessRepeats;
    if (is_endless && count >= now.min && run.begin <= at && at < run.end) {
      at = run.end;
      return;
    }
    const char* const begin = at;
    while (count < now.max && at != end_) {
      const char* next = at;
      if (!sets_[now.set].has(next_code_point(next))) break;
      at = next;
      ++memory_.scanned;
      if (++count <= now.min) low = at;
    }
    if (is_endless) run = {begin, at};
  }

  const Pattern& pattern_;
  const PatternProgram::Instruction* instructions_;
  const CodePointSet* sets_;
  const char* end_;
  Alternatives& memory_;
  std::vector<Alternative>& states_;
  size_t most_steps_;
};

std::string_view Pattern::find(std::string_view text, size_t from, Alternatives& alternatives) const {
  const char* const end = text.data() + text.size();
  if (from == 0 || alternatives.program != program_.get() || alternatives.text.data() != text.data() ||
      alternatives.text.size() != text.size()) {
    alternatives.runs.assign(program_->instructions.size(), {});
    alternatives.failed.assign(program_->instructions.size(), {});
    alternatives.program = program_.get();
    alternatives.text = text;
    alternatives.steps = alternatives.scanned = 0;
  }
  Search search(*this, text, alternatives);
  for (const char* at = text.data() + from; at != end; next_code_point(at)) {
    const char* const stop = search.match(0, at);
    if (stop != nullptr) return {at, static_cast<size_t>(stop - at)};
  }
  return {end, 0};
}

}  // namespace meshtrain
