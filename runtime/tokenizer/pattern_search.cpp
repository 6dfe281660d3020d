#include <limits>

#include "mesh/error.h"
#include "runtime/tokenizer/pattern.h"
#include "runtime/tokenizer/pattern_program.h"
#include "runtime/tokenizer/utf8.h"

namespace meshtrain {

class Pattern::Search {
 public:
  Search(const Pattern& pattern, std::string_view text, Alternatives& alternatives)
      : pattern_(pattern),
        instructions_(pattern.program_->instructions.data()),
        sets_(pattern.program_->sets.data()),
        end_(text.data() + text.size()),
        alternatives_(alternatives),
        most_steps_(10'000'000 + 4 * text.size()) {}

  // Returns the end of the match that begins at `at`; nullptr when there is none. Runs from `instruction` to its
  // Accept.
  const char* match(uint32_t instruction, const char* at) {
    const size_t bottom = alternatives_.size();
    while (true) {
      const Step step = forward(instruction, at);
      if (step == Step::Matched) {
        alternatives_.resize(bottom);
        return at;
      }
      if (alternatives_.size() == bottom) return nullptr;
      if (++steps_ > most_steps_) {
        alternatives_.clear();
        throw InputError("the regular expression " + pattern_.expression_ + " takes more than " +
                         std::to_string(most_steps_) + " backtracking steps in a text of " +
                         std::to_string(end_ - begin_of_error_) + " bytes");
      }
      Alternative& last = alternatives_.back();
      instruction = last.instruction;
      at = last.at;
      if (last.low == nullptr || last.at == last.low) {
        alternatives_.pop_back();
      } else {
        previous_code_point(last.at);
      }
    }
  }

  void begin_at(const char* begin) {
    begin_of_error_ = begin;
    steps_ = 0;
  }

 private:
  enum class Step { Matched, Failed };

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
            alternatives_.push_back({now.target, at, nullptr});
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
    const char* low = at;
    uint32_t count = 0;
    while (count < now.max && at != end_) {
      const char* next = at;
      if (!set.has(next_code_point(next))) break;
      at = next;
      if (++count <= now.min) low = at;
    }
    if (count < now.min) return false;
    if (now.kind == PatternProgram::Kind::Loop && at != low) {
      const char* one_less = at;
      previous_code_point(one_less);
      alternatives_.push_back({i + 1, one_less, low});
    }
    return true;
  }

  const Pattern& pattern_;
  const PatternProgram::Instruction* instructions_;
  const CodePointSet* sets_;
  const char* end_;
  Alternatives& alternatives_;
  size_t most_steps_;
  size_t steps_ = 0;
  const char* begin_of_error_ = nullptr;
};

std::string_view Pattern::find(std::string_view text, size_t from, Alternatives& alternatives) const {
  const char* const end = text.data() + text.size();
  Search search(*this, text, alternatives);
  for (const char* at = text.data() + from; at != end; next_code_point(at)) {
    search.begin_at(at);
    const char* const stop = search.match(0, at);
    if (stop != nullptr) return {at, static_cast<size_t>(stop - at)};
  }
  return {end, 0};
}

}  // namespace meshtrain
