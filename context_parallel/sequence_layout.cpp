#include "context_parallel/sequence_layout.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "context_parallel/kernel_calls.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"

namespace meshtrain {

struct SequenceLayout::Documents {
  std::vector<std::vector<int64_t>> starts;
  std::unique_ptr<KernelCallCache> kernel_calls;
};

SequenceLayout::SequenceLayout(Kind kind, int64_t sequence_length, int ranks, int rank)
    : kind_(kind), sequence_length_(sequence_length), ranks_(ranks), rank_(rank) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw std::invalid_argument("sequence layout: rank " + std::to_string(rank) + " is not one of " +
                                std::to_string(ranks) + " ranks");
  }
  const std::string length = std::to_string(sequence_length);
  if (sequence_length < 1) {
    throw InputError("train.sequence_length is " + length + "; it must be at least 1");
  }
  if (ranks == 1) return;
  const bool zigzag = kind == Kind::ZigZag;
  const int64_t num_chunks = zigzag ? 2 * int64_t{ranks} : ranks;
  if (sequence_length % num_chunks != 0) {
    std::string message = "train.sequence_length is " + length + ", which " + (zigzag ? "zigzag" : "contiguous") +
                          " context parallelism over cp=" + std::to_string(ranks) + " cannot cut into " +
                          std::to_string(num_chunks) + " equal chunks; make it a multiple of " +
                          std::to_string(num_chunks) + " or change cp in parallel.mesh";
    if (zigzag && sequence_length % ranks == 0) message += ", or set parallel.context.layout: contiguous";
    throw InputError(message);
  }
}

SequenceLayout SequenceLayout::unsharded(int64_t sequence_length) {
  return SequenceLayout(Kind::Contiguous, sequence_length, 1, 0);
}

std::vector<SequenceLayout::Chunk> SequenceLayout::chunks(int rank) const {
  const int64_t s = local_length();
  if (kind_ == Kind::Contiguous || ranks_ == 1) return {{rank * s, s}};
  const int64_t size = s / 2;
  return {{rank * size, size}, {(2 * int64_t{ranks_} - 1 - rank) * size, size}};
}

at::Tensor SequenceLayout::positions() const {
  return take(at::arange(sequence_length_, at::kLong), 0).contiguous();
}

at::Tensor SequenceLayout::take(const at::Tensor& tensor, int64_t dim) const {
  if (tensor.size(dim) != sequence_length_) {
    throw std::invalid_argument("sequence layout: dim " + std::to_string(dim) + " has " +
                                std::to_string(tensor.size(dim)) + " elements instead of the " +
                                std::to_string(sequence_length_) + " of the sequence");
  }
  std::vector<at::Tensor> parts;
  for (const Chunk& chunk : chunks(rank_)) parts.push_back(tensor.narrow(dim, chunk.start, chunk.size));
  return parts.size() == 1 ? parts.front() : at::cat(parts, dim);
}

SequenceLayout SequenceLayout::with_documents(std::vector<std::vector<int64_t>> starts) const {
  for (size_t row = 0; row < starts.size(); ++row) {
    int64_t previous = 0;
    for (const int64_t start : starts[row]) {
      if (start <= previous || start >= sequence_length_) {
        throw std::invalid_argument("sequence layout: a document of sequence " + std::to_string(row) + " begins at " +
                                    std::to_string(start) + "; starts must ascend from 1 to " +
                                    std::to_string(sequence_length_ - 1));
      }
      previous = start;
    }
  }
  SequenceLayout result = *this;
  result.documents_ =
      std::make_shared<const Documents>(Documents{std::move(starts), std::make_unique<KernelCallCache>()});
  return result;
}

const std::vector<std::vector<int64_t>>& SequenceLayout::documents() const {
  static const std::vector<std::vector<int64_t>> none;
  return documents_ ? documents_->starts : none;
}

bool SequenceLayout::divided() const {
  return std::ranges::any_of(documents(), [](const auto& starts) { return !starts.empty(); });
}

SequenceLayout SequenceLayout::undistributed() const {
  SequenceLayout all = unsharded(sequence_length_);
  all.documents_ = documents_;
  return all;
}

KernelCallCache* SequenceLayout::kernel_calls() const {
  return documents_ ? documents_->kernel_calls.get() : nullptr;
}

}  // namespace meshtrain
