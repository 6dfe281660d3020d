#pragma once

#include <string>

namespace meshtrain {

// What the launcher's environment says, without MPI.

/// Whether this is the first of the ranks, or alone: of what all ranks find alike, it tells.
bool is_announced_first();

/// For a `command` that one process does whole: throws InputError when a launcher started several.
void refuse_several_ranks(const std::string& command);

}  // namespace meshtrain
