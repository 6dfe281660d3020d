#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "runtime/program/watch/sighting.h"
#include "runtime/program/watch/stall.h"

namespace meshtrain {

/// Returns FOLDER/rank-00003.jsonl.
std::filesystem::path flight_file(const std::filesystem::path& folder, int rank);

/// Sets the folder that write_flights() writes to from now on; before, it writes nothing.
void keep_flights_in(const std::filesystem::path& folder, int rank, int num_ranks);

/// Writes the flights of this process to its flight_file(), which it replaces: a line about the rank, one a group, one
/// a collective. Any thread. Returns false when there is no folder, when that fails, and when the disk takes longer
/// than a second: who writes it has other errors to report.
bool write_flights(const Sighting& self);

/// Thrown for a folder without flight records.
class NoFlights : public InputError {
 public:
  using InputError::InputError;
};

/// The flight records of a run.
struct Flights {
  std::vector<RankSight> ranks;
  double time = 0;  ///< of the newest, in seconds since 1970
};

/// Reads the files of all ranks in `folder`. Ranks that others name, without a file, do not run. Files
/// of an earlier start with another number of ranks than the newest are left out. Throws NoFlights when there are
/// none, and InputError for one that cannot be read.
Flights read_flights(const std::filesystem::path& folder);

}  // namespace meshtrain
