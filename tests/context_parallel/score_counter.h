#pragma once

#include <cstdint>

namespace meshtrain::testing {

/// A counter for the query-key pairs that attention kernels compute in this process, in all batch rows and heads, while
/// this object lives. One at a time.
class ScoreCounter {
 public:
  ScoreCounter();
  ~ScoreCounter();
  ScoreCounter(const ScoreCounter&) = delete;
  ScoreCounter& operator=(const ScoreCounter&) = delete;

  int64_t scores() const;

 private:
  uint64_t handle_;
};

}  // namespace meshtrain::testing
