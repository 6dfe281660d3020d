#include "runtime/training/transformer/batch.h"

#include <algorithm>

#include "mesh/device/aten.h"
#include "runtime/training/data/documents.h"

namespace meshtrain {

MicroBatch read_micro_batch(const Samples& samples, const BatchOptions& options, const SequenceLayout& layout,
                            int64_t first, int64_t end) {
  const int64_t length = options.sequence_length, read = std::clamp<int64_t>(end - first, 0, options.micro_batch);
  const at::Tensor ids = at::zeros({options.micro_batch, length}, at::kLong);
  const at::Tensor labels = at::full_like(ids, kIgnoredLabel);
  DocumentStarts documents(static_cast<size_t>(options.micro_batch));
  for (int64_t row = 0; row < read; ++row) {
    documents[static_cast<size_t>(row)] =
        samples.read(first + row, ids.data_ptr<int64_t>() + row * length, labels.data_ptr<int64_t>() + row * length);
  }
  if (std::ranges::all_of(documents, [](const auto& starts) { return starts.empty(); })) documents.clear();
  return {layout.take(ids, 1).reshape(-1), layout.take(labels, 1).reshape(-1), std::move(documents), first};
}

StepBatch read_batch(const Samples& samples, const BatchOptions& options, const DeviceMesh& mesh,
                     const SequenceLayout& layout, int64_t first, std::optional<int64_t> padding) {
  const int64_t per_rank = options.global_batch / mesh.size(kDataAxis);
  first += mesh.coordinate(kDataAxis) * per_rank;
  StepBatch batch;
  for (int64_t begin = first; begin < first + per_rank; begin += options.micro_batch) {
    batch.micro_batches.push_back(read_micro_batch(samples, options, layout, begin, first + per_rank));
    const MicroBatch& last = batch.micro_batches.back();
    batch.num_counted += count_labels(last);
    if (padding) batch.num_padding = batch.num_padding.value_or(0) + last.inputs.eq(*padding).sum().item<int64_t>();
  }
  return batch;
}

int64_t count_labels(const MicroBatch& micro_batch) {
  return micro_batch.labels.ne(kIgnoredLabel).sum().item<int64_t>();
}

StepBatch read_step(const Samples& samples, const BatchOptions& options, const DeviceMesh& mesh,
                    const SequenceLayout& layout, int64_t step) {
  return read_batch(samples, options, mesh, layout, step * options.global_batch);
}

StepBatch made_step(const TransformerOptions& options, const SequenceLayout& layout, int64_t num_micro_batches,
                    at::Device device) {
  const int64_t num_tokens = options.batch.micro_batch * layout.local_length();
  const auto tokens = [&] {
    return at::randint(options.shape.vocab_size, {num_tokens}, at::TensorOptions(device).dtype(at::kLong));
  };
  StepBatch batch;
  for (int64_t i = 0; i < num_micro_batches; ++i) batch.micro_batches.push_back({tokens(), tokens()});
  batch.num_counted = num_tokens * num_micro_batches;
  return batch;
}

}  // namespace meshtrain
