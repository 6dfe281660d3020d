#pragma once

#include <string>
#include <vector>

namespace meshtrain {

/// Says which kinds of parameters `some` are, among `all` of a model: "norms, 2 of 4 biases". `tied`: the embedding is
/// the head too.
std::string describe_kinds(const std::vector<std::string>& some, const std::vector<std::string>& all, bool tied);

}  // namespace meshtrain
