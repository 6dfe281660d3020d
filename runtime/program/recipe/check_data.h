#pragma once

#include <string>
#include <vector>

#include "runtime/program/recipe/recipe.h"
#include "runtime/program/telemetry/notice.h"
#include "runtime/training/data/mixture.h"

namespace meshtrain {

// Compares the data that a recipe names with their files. No function is collective.

/// Compares the recipe's token files, those of `data` and of `evaluate`, with their sidecars (TokenSidecar). Throws
/// InputError, with the location of the key in the recipe, when a file's dtype is another, when it has another number
/// of tokens, when documents end with another token than `documents` says, and when model.vocab_size is too small for
/// its tokenizer; also for a file without a sidecar that certainly holds no token ids (kind_of_no_tokens()).
/// `tokenizer`, a name for load_tokenizer() or empty: that of the run; one with another vocabulary than the file's is
/// refused too. Files that do not exist, and others without a sidecar, are left to Dataset.
void check_sidecars(const Recipe& recipe, const std::string& tokenizer = "");

/// Throws InputError, with the location of data.tokenizer in the recipe, when it has ids beyond the model's vocabulary:
/// neither `generate` nor another program could use the model with it. That of bytes may, as a model of ASCII has the
/// lower ones. One that cannot be loaded is left alone.
void check_tokenizer(const Recipe& recipe);

/// Gives every token file for which the recipe sets no layout that of its sidecar, and notes in Recipe::locations that
/// the sidecar said so. Call on a result of load_recipe(), whose locations tell what the recipe sets. Throws InputError
/// for a damaged sidecar.
void take_layouts(Recipe& recipe);

/// Returns lines about token files and their sidecars: which layouts take_layouts() took, and warnings of a layout that
/// the sidecar does not have and of a tokenizer with the same vocabulary but another checksum.
std::vector<Notice> sidecar_lines(const Recipe& recipe, const std::string& tokenizer);

/// Throws InputError, with the location of the key in the recipe, when a source of `data` has no label that counts.
/// Reads samples of a source until one has such a label; in most files the first has one.
void check_labels(const Recipe& recipe, const Mixture& data);

}  // namespace meshtrain
