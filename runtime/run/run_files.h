#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "runtime/files/checksum.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// A file that ranks of every host read in a run.
struct RunFile {
  std::string key;  ///< of the recipe: "data.mixture[0].tokens.idx"
  std::filesystem::path path;
};

/// The token files of `data`, their indices and loss masks.
std::vector<RunFile> data_files(const DataRecipe& data);

/// "1234 bytes with checksum 0123456789abcdef"
std::string describe(const Fingerprint& print);

/// Runs `action`, which reads files. An InputError of a rank that is not on rank 0's host gets the host's name, since
/// the file may be there and not here.
void name_host(const Group& world, const std::function<void()>& action);

/// Throws InputError on every rank unless all hosts of `world` have the same files: those of `data` and `evaluate`,
/// and where `reads_weights` the weights of model.hf. Names the first that differs, its hosts, and what each has. The
/// first rank of each host reads parts of its files (Fingerprint). Every rank must call it.
void check_same_files(const Recipe& recipe, bool reads_weights, const Group& world);

}  // namespace meshtrain
