#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "mesh/base/files/checksum.h"
#include "mesh/group.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// A file that ranks on every host read during a run.
struct RunFile {
  std::string key;  ///< key in the recipe: "data.mixture[0].tokens.idx"
  std::filesystem::path path;
};

/// Returns the token files of `data`, their indices and loss masks.
std::vector<RunFile> data_files(const DataOptions& data);

/// Describes a fingerprint: "1234 bytes with checksum 0123456789abcdef".
std::string describe(const Fingerprint& print);

/// Runs `action`, which reads files. Adds the host's name to an InputError of a rank that is not on rank 0's host,
/// because the file may exist on one host only.
void name_host(const Group& world, const std::function<void()>& action);

/// Throws InputError on every rank unless all hosts of `world` have the same files: those of `data` and `evaluate`, and
/// the weights of model.hf if `reads_weights`. The error names the first file that differs, its hosts, and its
/// fingerprints. The first rank of each host reads parts of the files (Fingerprint). Every rank must call it.
void check_same_files(const Recipe& recipe, bool reads_weights, const Group& world);

}  // namespace meshtrain
