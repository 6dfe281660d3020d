#pragma once

#include "mesh/error.h"

namespace meshtrain {

/// A checkpoint is not as it was written: its manifest, a file or a piece is missing or has changed. Says which.
class DamagedCheckpoint : public InputError {
 public:
  using InputError::InputError;
};

}  // namespace meshtrain
