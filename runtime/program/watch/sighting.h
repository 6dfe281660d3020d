#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "runtime/program/watch/activity.h"
#include "runtime/program/watch/phase.h"

namespace meshtrain {

/// The state that a rank shows to others: plain memory, shared between processes and sent between hosts.
struct Sighting {
  std::array<char, 64> host{};
  std::array<char, 96> name{};    ///< "rank 3 (dp=0 cp=0 tp=1)"
  std::array<char, 192> phase{};  ///< PhaseState::text
  PhaseKind phase_kind = PhaseKind::SetUp;
  int64_t step = 0;  ///< of the phase; 0: none
  Activity activity;
};

/// Returns the state of this process now. `name`: that of the rank, until set_rank_name() gives it a longer one.
Sighting sight_self(const std::string& name);

}  // namespace meshtrain
