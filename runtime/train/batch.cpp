#include "runtime/train/batch.h"

#include <ATen/ATen.h>

namespace meshtrain {

StepBatch read_batch(const Samples& samples, const Recipe& recipe, const DeviceMesh& mesh, const SequenceLayout& layout,
                     int64_t first) {
  const TrainRecipe& train = recipe.train;
  const int64_t per_rank = train.global_batch / mesh.size("dp");
  first += mesh.coordinate("dp") * per_rank;

  StepBatch batch;
  for (int64_t begin = 0; begin < per_rank; begin += train.micro_batch) {
    at::Tensor ids = at::empty({train.micro_batch, train.sequence_length}, at::kLong);
    at::Tensor labels = at::empty_like(ids);
    for (int64_t row = 0; row < train.micro_batch; ++row) {
      samples.read(first + begin + row, ids.data_ptr<int64_t>() + row * train.sequence_length,
                   labels.data_ptr<int64_t>() + row * train.sequence_length);
    }
    DocumentStarts documents;
    if (recipe.data.documents) {
      documents = find_documents(ids, *recipe.data.documents);
      if (recipe.data.boundary_labels == "ignored") labels.masked_fill_(ids.eq(*recipe.data.documents), kIgnoredLabel);
    }
    MicroBatch micro_batch{layout.take(ids, 1).reshape(-1), layout.take(labels, 1).reshape(-1), std::move(documents)};
    batch.num_counted += micro_batch.labels.ne(kIgnoredLabel).sum().item<int64_t>();
    batch.micro_batches.push_back(std::move(micro_batch));
  }
  return batch;
}

StepBatch read_step(const Samples& samples, const Recipe& recipe, const DeviceMesh& mesh, const SequenceLayout& layout,
                    int64_t step) {
  return read_batch(samples, recipe, mesh, layout, step * recipe.train.global_batch);
}

StepBatch made_step(const Recipe& recipe, const SequenceLayout& layout, int64_t num_micro_batches, at::Device device) {
  const int64_t num_tokens = recipe.train.micro_batch * layout.local_length();
  const auto tokens = [&] {
    return at::randint(recipe.model.shape.vocab_size, {num_tokens}, at::TensorOptions(device).dtype(at::kLong));
  };
  StepBatch batch;
  for (int64_t i = 0; i < num_micro_batches; ++i) batch.micro_batches.push_back({tokens(), tokens()});
  batch.num_counted = num_tokens * num_micro_batches;
  return batch;
}

}  // namespace meshtrain
