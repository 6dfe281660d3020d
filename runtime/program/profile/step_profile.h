#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/program/profile/trace_file.h"

namespace meshtrain {

/// Steps of which ranks write a trace.
struct ProfileOptions {
  int64_t from = 0;                  ///< the first step; 0: no trace
  int64_t steps = 1;                 ///< how many
  std::vector<int64_t> ranks = {0};  ///< which write one each
};

/// The trace of some steps on some ranks: LibTorch's operators, as Kineto records them, and the work and collectives of
/// the flight recorder. Each rank makes one; those that are not asked for do nothing.
class StepProfile {
 public:
  /// `folder`: RUN_DIR/traces, made when it is needed. `name`: of the rank, "rank 3 (dp=0 cp=0 tp=1) on node7".
  StepProfile(const ProfileOptions& options, std::filesystem::path folder, int64_t rank, std::string name,
              at::Device device);
  /// Drops a trace that has not ended.
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  /// Call at the beginning and at the end of each step, on the thread that makes it. The end of the last step of a
  /// trace writes it. Errors are logged and do not end the run.
  void begin_step(int64_t step);
  void end_step(int64_t step);
  /// Writes what there is of a trace when the run ends within it.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void begin();
  void write();

  ProfileOptions options_;
  std::filesystem::path folder_;
  std::string name_;
  int64_t rank_;
  at::Device device_;
  bool takes_part_;
  bool runs_ = false;
  std::vector<TracedStep> steps_;
};

}  // namespace meshtrain
