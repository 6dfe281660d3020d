#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace meshtrain {

/// Return a value as YAML, on one line; read again it is the same value, to the last bit.
std::string scalar_text(int64_t value);
std::string scalar_text(double value);
std::string scalar_text(bool value);
std::string scalar_text(const std::string& value);
std::string scalar_text(const std::filesystem::path& value);   ///< empty: null
std::string scalar_text(const std::optional<int64_t>& value);  ///< none: null
std::string scalar_text(const std::optional<double>& value);   ///< none: null
std::string scalar_text(const std::array<double, 2>& value);
std::string scalar_text(const std::vector<std::string>& value);
std::string scalar_text(const std::vector<int64_t>& value);
std::string scalar_text(const std::vector<double>& value);
std::string scalar_text(const std::map<std::string, int64_t>& value);  ///< sizes; "auto" for those below 1

}  // namespace meshtrain
