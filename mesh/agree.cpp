#include "mesh/agree.h"

#include <algorithm>
#include <cstring>

#include "mesh/device/aten.h"
#include "mesh/device/error_message.h"

namespace meshtrain {

bool is_agreed(const std::exception& error) {
  return dynamic_cast<const InputError*>(&error) != nullptr || dynamic_cast<const AgreedError*>(&error) != nullptr;
}

std::optional<std::chrono::milliseconds> agreement_limit(const std::exception& error, std::chrono::milliseconds limit) {
  const bool is_input = dynamic_cast<const InputError*>(&error) != nullptr;
  const bool is_certain = dynamic_cast<const AgreedInputError*>(&error) != nullptr;
  return is_input && !is_certain ? std::optional(limit) : std::nullopt;
}

std::string broadcast_text(const Group& world, const std::string& text, int root) {
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  world.broadcast(length, root).wait();
  at::Tensor bytes = at::empty({length.item<int64_t>()}, at::kByte);
  if (world.rank() == root && !text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  world.broadcast(bytes, root).wait();
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel())};
}

std::vector<std::string> gather_texts(const Group& world, const std::string& text) {
  constexpr int64_t kBytesAtOnce = 16 << 20;  // bounds what rank 0 holds twice
  const auto size = static_cast<size_t>(world.size()), own = static_cast<size_t>(world.rank());
  at::Tensor lengths = at::empty({world.size()}, at::kLong);
  world.all_gather(lengths, at::full({1}, static_cast<int64_t>(text.size()), at::kLong)).wait();
  const int64_t* length = lengths.const_data_ptr<int64_t>();
  std::vector<std::string> texts(own == 0 ? size : 0);
  for (size_t first = 0, end = 0; first < size; first = end) {
    int64_t total = length[end++];
    for (; end < size && total + length[end] <= kBytesAtOnce; ++end) total += length[end];
    if (total == 0) continue;
    std::vector<int64_t> received(size, 0), sent(size, 0);
    if (own >= first && own < end) sent[0] = length[own];
    if (own == 0) std::copy(length + first, length + end, received.begin() + static_cast<std::ptrdiff_t>(first));
    const at::Tensor bytes = at::from_blob(const_cast<char*>(text.data()), {sent[0]}, at::kByte);
    at::Tensor all = at::empty({own == 0 ? total : 0}, at::kByte);
    world.all_to_all(all, received, bytes, sent).wait();
    const char* next = static_cast<const char*>(all.const_data_ptr());
    for (size_t rank = first; own == 0 && rank < end; next += length[rank++]) {
      texts[rank].assign(next, static_cast<size_t>(length[rank]));
    }
  }
  return texts;
}

std::string scatter_texts(const Group& world, const std::vector<std::string>& texts) {
  const auto size = static_cast<size_t>(world.size());
  const bool sends = world.rank() == 0;
  std::vector<int64_t> sent(size, sends ? 1 : 0), received(size, 0);
  received[0] = 1;
  at::Tensor lengths = at::empty({sends ? world.size() : 0}, at::kLong), length = at::empty({1}, at::kLong);
  std::string joined;
  for (size_t rank = 0; sends && rank < size; ++rank) {
    lengths.mutable_data_ptr<int64_t>()[rank] = static_cast<int64_t>(texts[rank].size());
    joined += texts[rank];
  }
  world.all_to_all(length, received, lengths, sent).wait();
  for (size_t rank = 0; sends && rank < size; ++rank) sent[rank] = static_cast<int64_t>(texts[rank].size());
  received[0] = length.item<int64_t>();
  const at::Tensor bytes = at::from_blob(joined.data(), {static_cast<int64_t>(joined.size())}, at::kByte);
  std::string text(static_cast<size_t>(received[0]), '\0');
  at::Tensor own = at::from_blob(text.data(), {received[0]}, at::kByte);
  world.all_to_all(own, received, bytes, sent).wait();
  return text;
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
    message = world.coordinate_text() + ": " + message_of(error);
  }
  // The largest entry is that of the lowest failing rank.
  at::Tensor vote = at::full({1}, outcome == kFine ? 0 : (world.size() - world.rank()) * 3 + outcome, at::kLong);
  world.all_reduce(vote, Reduce::Max).wait();
  const int64_t winner = vote.item<int64_t>();
  if (winner == 0) return;
  const int root = static_cast<int>(world.size() - winner / 3);
  message = broadcast_text(world, message, root);
  if (winner % 3 == kInputError) throw AgreedInputError(message);
  throw AgreedError(message);
}

}  // namespace meshtrain
