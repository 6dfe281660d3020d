#pragma once

#include <filesystem>
#include <string>

namespace meshtrain {

// Functions that say what a path has in place of a Hugging Face model, and the way to one: a command that converts or
// fetches it. `advice`: what they say where there is nothing of a known kind.

/// Returns that there is no folder `path`, or no config.json in it. Returns an empty text for a folder that has one.
std::string describe_no_model(const std::filesystem::path& path, const std::string& advice = "");

/// Returns true when `folder` has model.safetensors or its index.
bool has_weights(const std::filesystem::path& folder);

/// Returns that `folder` has neither.
std::string describe_no_weights(const std::filesystem::path& folder, const std::string& advice = "");

}  // namespace meshtrain
