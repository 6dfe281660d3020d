#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "mesh/error.h"
#include "mesh/group.h"

namespace meshtrain {

/// A failure that every rank knows of and throws alike: to be reported by one of them.
class AgreedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The same of what the user asked for.
class AgreedInputError : public InputError {
 public:
  using InputError::InputError;
};

/// Runs `action` on every rank of `world`. When it throws on any of them, all ranks throw what the lowest one that
/// failed threw: AgreedInputError with its message, or AgreedError with its place and message. So no rank goes on
/// alone. `action` issues no collectives. Every rank must call it.
void agree(const Group& world, const std::function<void()>& action);

/// `text` of rank 0, on every rank.
std::string broadcast_text(const Group& world, const std::string& text);

/// What each rank of `world` says, in their order, on rank 0; nothing on the others. Every rank must call it.
std::vector<std::string> gather_texts(const Group& world, const std::string& text);

/// The text that rank 0 of `world` has for each rank, in their order, on that rank. `texts` of other ranks are not
/// looked at. Every rank must call it.
std::string scatter_texts(const Group& world, const std::vector<std::string>& texts);

}  // namespace meshtrain
