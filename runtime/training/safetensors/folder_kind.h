#pragma once

#include <filesystem>
#include <string>

namespace meshtrain {

// Descriptions of a path that is not a Hugging Face model, with a command that converts or fetches one. `advice`: what
// to do when the path is not of a known kind.

/// Returns a message when there is no folder `path`, or no config.json in it; an empty text otherwise.
std::string describe_no_model(const std::filesystem::path& path, const std::string& advice = "");

/// Returns true when `folder` has model.safetensors or its index.
bool has_weights(const std::filesystem::path& folder);

/// Returns the message that `folder` has neither.
std::string describe_no_weights(const std::filesystem::path& folder, const std::string& advice = "");

}  // namespace meshtrain
