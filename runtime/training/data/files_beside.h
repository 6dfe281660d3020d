#pragma once

#include <filesystem>
#include <string>

#include "mesh/base/wording.h"
#include "runtime/training/data/options.h"

namespace meshtrain {

/// Returns the loss mask that belongs to a token file: the one that its sidecar names, else NAME.mask where it exists.
/// Returns an empty path when there is none. Throws InputError for a damaged sidecar, as all functions here do.
std::filesystem::path mask_beside(const std::filesystem::path& tokens);

// Warnings about files beside the tokens of a source that its options do not use, which changes what is trained or
// evaluated without an error. Each is an empty text where there is nothing to warn of. `key`: the recipe's key of the
// source, "data".

/// Returns a warning when `source` has no loss_mask, but there is a mask_beside() its tokens.
Wording mask_warning(const SourceOptions& source, const std::string& key);

/// Returns a warning when samples are packed, as the sidecar says or NAME.mask and an index beside the tokens tell,
/// several of them in a sequence, and `source` does not keep them apart by documents: index.
Wording documents_warning(const SourceOptions& source, const std::string& key);

}  // namespace meshtrain
