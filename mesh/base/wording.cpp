#include "mesh/base/wording.h"

#include <utility>

namespace meshtrain {

Wording::Wording(std::string text) : parts_{{"", std::move(text)}} {}
Wording::Wording(const char* text) : Wording(std::string(text)) {}
Wording::Wording(Key key) : parts_{{std::move(key.path), ""}} {}
Wording::Wording(Setting setting) : parts_{{std::move(setting.key), std::move(setting.value)}} {}

Wording::Wording(const Wording&) = default;
Wording::Wording(Wording&&) noexcept = default;
Wording& Wording::operator=(const Wording&) = default;
Wording& Wording::operator=(Wording&&) noexcept = default;
Wording::~Wording() = default;

Wording& Wording::operator+=(const Wording& more) {
  parts_.insert(parts_.end(), more.parts_.begin(), more.parts_.end());
  return *this;
}

std::string Wording::text(const KeyNames& names) const {
  std::string text;
  for (const auto& [key, rest] : parts_) {
    const auto name = names.find(key);
    const bool is_named = name != names.end();
    text += is_named ? name->second : key;
    if (!key.empty() && !rest.empty()) text += is_named ? " " : ": ";
    text += rest;
  }
  return text;
}

Wording operator+(Wording left, const Wording& right) {
  return left += right;
}

}  // namespace meshtrain
