#pragma once

#include "mesh/base/error.h"

namespace meshtrain {

/// The error for a checkpoint that is not as it was written: its manifest, a file or a piece is missing or has changed.
/// The message says which.
class DamagedCheckpoint : public InputError {
 public:
  using InputError::InputError;
};

/// The error for a checkpoint that a later version of this program wrote, in a form that this one does not know.
class NewerCheckpoint : public InputError {
 public:
  using InputError::InputError;
};

}  // namespace meshtrain
