#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/program/run/step_meter.h"

namespace meshtrain {

/// A detector of a rank that is slower than the others of its class in every step. The others wait for that rank in
/// their collectives, while the rank itself waits for none. It has the least exposed communication among ranks with the
/// same work. On GPUs, where hosts do not wait, the detector finds none.
class Stragglers {
 public:
  static constexpr int64_t kSteps = 20;          ///< that are looked at together
  static constexpr double kShareOfSteps = 0.9;   ///< in which the rank must be the one
  static constexpr double kShareOfTime = 0.1;    ///< of a step that the others must wait for it, in the median
  static constexpr double kLeastSeconds = 5e-3;  ///< of that waiting in a step: rank 0 alone writes files
  static constexpr double kLeastTime = 10;  ///< seconds for which the rank must be slow: 20 short steps prove nothing

  /// `hosts`: each rank's host; may be empty. `classes`: each rank's class, one number for all ranks with the same
  /// work; empty: ranks with the same stages of a pipeline have. A rank is compared with the median of its own class.
  Stragglers(const MeshLayout& layout, std::vector<std::string> hosts, std::vector<int64_t> classes = {});

  /// Notes a step of all ranks. Returns, once for each time that a rank becomes slow, a line that names it, and its
  /// share of the waiting; else an empty text.
  std::string note(const std::vector<RankStep>& ranks);

 private:
  struct Delay {
    int64_t slowest = 0;  // rank
    double others = 0;    // seconds that the others of its class wait longer, in the median
    double step_seconds = 0;
  };

  /// Returns the rank for which its class waited longest in a step; nothing when no class has two ranks or hosts do not
  /// wait.
  std::optional<Delay> slowest_of(const std::vector<RankStep>& ranks) const;
  std::string describe(int64_t rank, double others, double step_seconds) const;

  MeshLayout layout_;
  std::vector<std::string> hosts_;
  std::vector<int64_t> classes_;
  std::vector<Delay> last_;  // at most kSteps, in a ring
  size_t next_ = 0;
  int64_t named_ = -1;   // rank
  int64_t slow_ = -1;    // rank that is slow now
  double slow_for_ = 0;  // seconds
};

}  // namespace meshtrain
