#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace meshtrain {

/// Parameters with their own settings.
struct GroupOptions {
  std::string pattern;                      ///< glob for their names
  double learning_rate_factor = 1;          ///< factor of the learning rate
  std::optional<double> weight_decay = {};  ///< replaces the optimizer's; none: the optimizer's
  bool by_element = false;                  ///< muon updates their matrices as AdamW does, as for a head

  bool operator==(const GroupOptions&) const = default;
};

/// The factor of Muon's orthogonal updates; see Muon.
enum class MuonScale { MatchRmsAdamW, Original, Spectral, UnitRmsNorm };

/// The polynomials of newton_schulz().
enum class Coefficients { Simple, Quintic, PolarExpress };

struct MuonOptions {
  MuonScale scale = MuonScale::MatchRmsAdamW;
  double scale_factor = 1;  ///< multiplies the scale
  bool nesterov = true;
  Coefficients coefficients = Coefficients::Simple;
  int64_t newton_schulz_steps = 5;
  std::optional<double> adamw_learning_rate;  ///< for embedding, head and non-matrices; none: the learning rate
};

enum class DecayScope { All, Matrices };

struct OptimizerOptions {
  std::string name = "adamw";  ///< one of optimizer_names()
  double learning_rate = 0;    ///< the peak of the schedule
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;                             ///< for sgd and muon
  DecayScope decay = DecayScope::All;              ///< parameters with weight decay
  std::optional<at::ScalarType> state_dtype = {};  ///< of momentum and moments: fp32; none: that of the weights
  MuonOptions muon;
  std::vector<GroupOptions> groups;  ///< the first group whose pattern matches counts
};

enum class Schedule { Constant, Cosine, Linear, Wsd };
enum class WarmupShape { Linear, Log };

/// The learning rate over the steps; see learning_rate().
struct ScheduleOptions {
  Schedule name = Schedule::Constant;
  WarmupShape warmup_shape = WarmupShape::Linear;
  int64_t warmup_steps = 0;
  std::optional<double> first_ratio = {};   ///< first learning rate over the peak; none: 1 / warmup_steps, for log 0
  int64_t delay = 0;                        ///< steps before the schedule begins; they have the rate of its first step
  int64_t decay_steps = 0;                  ///< length of the final decay, for wsd
  double min_ratio = 0;                     ///< last learning rate over the peak, for cosine, linear and wsd
  std::optional<int64_t> total_steps = {};  ///< the schedule's last step; none: that of the run
};

}  // namespace meshtrain
