#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
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

/// An agreed failure that the user can correct.
class AgreedInputError : public InputError {
 public:
  using InputError::InputError;
};

/// Returns whether `error` is one that every rank may throw alike: an InputError or an AgreedError. Any other is its
/// rank's own.
bool is_agreed(const std::exception& error);

/// Returns how long to wait for the other ranks to fail alike: `limit` for an InputError, whose file or variable
/// perhaps this rank alone sees; no limit for errors that all ranks certainly throw.
std::optional<std::chrono::milliseconds> agreement_limit(const std::exception& error,
                                                         std::chrono::milliseconds limit = std::chrono::seconds(10));

/// Runs `action` on every rank of `world`. When it throws on any of them, all ranks throw the error of the lowest rank
/// that failed: AgreedInputError with its message, or AgreedError with its coordinate and message. So no rank continues
/// alone. `action` issues no collectives. Every rank must call it.
void agree(const Group& world, const std::function<void()>& action);

/// Returns `text` of rank `root` on every rank. Every rank must call it, with the same root.
std::string broadcast_text(const Group& world, const std::string& text, int root = 0);

/// Returns the text of each rank of `world`, in their order, on rank 0; nothing on the others. Every rank must call it.
std::vector<std::string> gather_texts(const Group& world, const std::string& text);

/// Returns on each rank of `world` the text that rank 0 has for it; `texts` is in the order of ranks, and ignored on
/// other ranks. Every rank must call it.
std::string scatter_texts(const Group& world, const std::vector<std::string>& texts);

}  // namespace meshtrain
