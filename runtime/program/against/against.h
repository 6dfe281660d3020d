#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace meshtrain {

struct AgainstOptions {
  std::string precision = "fp64";  ///< fp64 fp32: in which one rank computes
  bool every_parameter = false;    ///< prints every parameter in the table
};

/// Compares a step of another program (StepDump) with the same step on one rank, prints the comparison and what
/// explains each difference, and returns true when nothing differs by more than rounding explains. Throws InputError
/// for a folder that cannot be read or a model that is not supported. One process; no collective.
bool verify_against(const std::filesystem::path& folder, const AgainstOptions& options,
                    const std::function<void(const std::string&)>& print);

}  // namespace meshtrain
