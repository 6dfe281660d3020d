#include "mesh/base/error.h"

#include <utility>

namespace meshtrain {

InputError::InputError(Wording problem) : runtime_error(problem.text()), problem_(std::move(problem)) {}

InputError::InputError(std::string key, Wording problem)
    : runtime_error(key + ": " + problem.text()), key_(std::move(key)), problem_(std::move(problem)) {}

InputError::InputError(const InputError&) = default;
InputError::~InputError() = default;

std::string InputError::text(const KeyNames& names) const {
  return key_.empty() ? problem_.text(names) : Wording(Key{key_}).text(names) + ": " + problem_.text(names);
}

}  // namespace meshtrain
