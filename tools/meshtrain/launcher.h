#pragma once

#include <string>

namespace meshtrain {

/// Throws InputError when a launcher started several processes: `command` is the work of one.
void refuse_several_ranks(const std::string& command);

}  // namespace meshtrain
