#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/group.h"

namespace meshtrain {

/// A failure that every rank knows and throws alike: one of them reports it.
class AgreedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An agreed failure that is the user's to mend.
class AgreedInputError : public InputError {
 public:
  using InputError::InputError;
};

/// Runs `action` on every rank of `world`. When it throws on any of them, all ranks throw the error of the lowest rank
/// that failed: AgreedInputError with its message, or AgreedError with its coordinate and message. So no rank continues
/// alone. `action` issues no collectives. Every rank must call it.
void agree(const Group& world, const std::function<void()>& action);

/// Returns `text` of rank 0 on every rank. Every rank must call it.
std::string broadcast_text(const Group& world, const std::string& text);

/// Returns the text of each rank of `world`, in their order, on rank 0; nothing on the others. Every rank must call it.
std::vector<std::string> gather_texts(const Group& world, const std::string& text);

/// Returns on each rank of `world` the text that rank 0 has for it; `texts` is in the order of ranks, and ignored on
/// other ranks. Every rank must call it.
std::string scatter_texts(const Group& world, const std::vector<std::string>& texts);

}  // namespace meshtrain
