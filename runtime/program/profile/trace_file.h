#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/flight_recorder.h"

namespace meshtrain {

struct TracedStep {
  int64_t step = 0;
  Flight::Clock::time_point begun{}, ended{};
};

/// What a rank adds to a trace of Kineto's.
struct TraceTracks {
  int64_t rank = 0;
  std::string name;  ///< "rank 3 (dp=0 cp=0 tp=1) on node7"
  std::vector<TracedStep> steps;
  FlightTrace flights;
  std::vector<GroupFlights> groups;
  /// Nanoseconds since 1970 of the zero of Flight::Clock.
  int64_t clock_zero = 0;
};

/// Returns nanoseconds since 1970 of the zero of Flight::Clock, as the clocks stand now.
int64_t clock_zero();

/// Returns the trace `kineto`, a JSON object as ProfilerResult::save() writes it, with the tracks of `tracks`: one with
/// the steps and their parts, and one for each group with its collectives, each from start to end, with purpose, bytes,
/// shape, and how long the host waited. Throws std::runtime_error when `kineto` is no such trace.
std::string with_tracks(std::string kineto, const TraceTracks& tracks);

}  // namespace meshtrain
