#include "runtime/program/launch/variables.h"

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

struct Variable {
  const char* name;
  double least, most;
  const char* bounds;
};

constexpr Variable kVariables[] = {
    {"MESHTRAIN_PROGRESS", 0, 86'400, "0 to 86400 seconds"},
    {"MESHTRAIN_SILENCE_LIMIT", 2, 86'400, "2 to 86400 seconds"},
    {"MESHTRAIN_SLOW_WRITE", 1e-3, 1e9, "a number of seconds above 0"},
};

}  // namespace

void check_variables() {
  for (const auto& [name, least, most, bounds] : kVariables) {
    const char* const value = std::getenv(name);
    const std::string_view text = value == nullptr ? "" : value;
    if (text.empty()) continue;
    double seconds = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error == std::errc() && stop == text.data() + text.size() && seconds >= least && seconds <= most) continue;
    throw InputError(std::string(name) + " is \"" + std::string(text) + "\": set it to " + bounds + ", or unset it");
  }
}

}  // namespace meshtrain
