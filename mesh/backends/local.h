#pragma once

#include <memory>

#include "mesh/backend.h"

namespace meshtrain {

/// One rank: a collective is a copy or nothing.
std::shared_ptr<Backend> local_backend();

}  // namespace meshtrain
