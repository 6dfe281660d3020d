#pragma once

#include <cstdint>
#include <string>

namespace meshtrain {

/// The progress of a computation over a known number of tokens, in lines for people every few seconds.
class Progress {
 public:
  static constexpr double kEvery = 5;  ///< seconds before the first line and between lines

  explicit Progress(int64_t num_tokens) : num_tokens_(num_tokens) {}

  /// Returns "12,345 of 98,765 tokens, 1,234 tok/s, eta 1:10" once `done` tokens are computed, `seconds` after the
  /// beginning; an empty text when the last line is less than kEvery seconds old, and at the end.
  std::string line(int64_t done, double seconds);

 private:
  int64_t num_tokens_;
  double said_ = 0;  // seconds after the beginning
};

}  // namespace meshtrain
