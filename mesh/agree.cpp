#include "mesh/agree.h"

#include <ATen/ATen.h>

#include <cstring>

#include "mesh/error.h"

namespace meshtrain {
namespace {

std::string broadcast_text(const Group& world, const std::string& text, int root) {
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  world.broadcast(length, root).wait();
  at::Tensor bytes = at::empty({length.item<int64_t>()}, at::kByte);
  if (world.rank() == root && !text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  world.broadcast(bytes, root).wait();
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel())};
}

}  // namespace

std::string broadcast_text(const Group& world, const std::string& text) {
  return broadcast_text(world, text, 0);
}

void agree(const Group& world, const std::function<void()>& action) {
  constexpr int64_t kFine = 0, kFailed = 1, kInputError = 2;
  int64_t outcome = kFine;
  std::string message;
  try {
    action();
  } catch (const InputError& error) {
    outcome = kInputError;
    message = error.what();
  } catch (const std::exception& error) {
    outcome = kFailed;
    message = world.place() + ": " + message_of(error);
  }
  // The largest entry is that of the lowest failing rank.
  at::Tensor vote = at::full({1}, outcome == kFine ? 0 : (world.size() - world.rank()) * 3 + outcome, at::kLong);
  world.all_reduce(vote, Reduce::Max).wait();
  const int64_t winner = vote.item<int64_t>();
  if (winner == 0) return;
  const int root = static_cast<int>(world.size() - winner / 3);
  message = broadcast_text(world, message, root);
  if (winner % 3 == kInputError) throw InputError(message);
  throw AgreedError(message);
}

}  // namespace meshtrain
