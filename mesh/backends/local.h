#pragma once

#include <memory>

#include "mesh/backend.h"

namespace meshtrain {

/// Returns the backend of one rank: a collective is a copy or does nothing.
std::shared_ptr<Backend> local_backend();

}  // namespace meshtrain
