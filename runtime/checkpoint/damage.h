#pragma once

#include "mesh/error.h"

namespace meshtrain {

/// A checkpoint is not as it was written: its manifest, a file or a piece is missing or has changed. Says which.
class DamagedCheckpoint : public InputError {
 public:
  using InputError::InputError;
};

/// A checkpoint that a later version of this program wrote, in a form that this one does not know.
class NewerCheckpoint : public InputError {
 public:
  using InputError::InputError;
};

}  // namespace meshtrain
