#include "mesh/backends/mpi/shared_memory/board.h"

#include "mesh/device/memory.h"

namespace meshtrain {

HostBoard::HostBoard(std::shared_ptr<HostMapping> mapping, const HostLayout& layout,
                     std::shared_ptr<MpiCommunicator> across)
    : mapping_(std::move(mapping)), layout_(layout), across_(std::move(across)) {
  WindowMemory::counted().add_exchange(kRankBytes);
}

HostBoard::~HostBoard() {
  WindowMemory::counted().add_exchange(-kRankBytes);
}

void HostBoard::publish(Channel channel) {
  rank(layout_.local_rank).published[channel].steps.store(++published_[channel], std::memory_order_release);
}

bool HostBoard::everyone_published(Channel channel) const {
  for (int local_rank = 0; local_rank < layout_.local_size; ++local_rank) {
    if (rank(local_rank).published[channel].steps.load(std::memory_order_acquire) < published_[channel]) return false;
  }
  return true;
}

void HostBoard::open(const Notice& notice) {
  rank(layout_.local_rank).notices[(published_[kOpening] + 1) % 2] = notice;
  publish(kOpening);
}

}  // namespace meshtrain
