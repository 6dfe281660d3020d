#include "runtime/program/generate/language_model.h"

#include <utility>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/training/transformer/parallelize.h"

namespace meshtrain {
namespace {

void check_mesh(const DeviceMesh& mesh) {
  if (mesh.size() == mesh.size(kTensorAxis)) return;
  throw InputError("mesh " + mesh.layout().describe() +
                   ": text is generated over tp alone, whose ranks share one sequence: all ranks must be on it, as "
                   "in --mesh tp=" +
                   std::to_string(mesh.size()));
}

}  // namespace

LanguageModel::LanguageModel(const ModelShape& shape, const DeviceMesh& mesh, at::ScalarType dtype,
                             const std::function<void(const Parameter&)>& read, at::Device device)
    : shape_(shape), num_parts_(mesh.size()), options_(at::TensorOptions(device).dtype(dtype)) {
  check_mesh(mesh);
  const TransformerOptions options{.shape = shape, .freeze = {"*"}, .precision = {.compute = dtype, .residual = dtype}};
  agree(mesh.world(), [&] { model_ = std::move(parallelize(options, {}, mesh, device, read).front()); });
}

KeyValueCache LanguageModel::make_cache(int64_t capacity) const {
  return KeyValueCache(shape_, num_parts_, capacity, options_);
}

VocabularyLogits LanguageModel::next(const std::vector<int64_t>& ids, KeyValueCache& cache) {
  const int64_t count = static_cast<int64_t>(ids.size());
  const at::Tensor positions = at::arange(cache.length(), cache.length() + count);
  const at::ScalarType dtype = options_.dtype().toScalarType();
  const Sequence sequence{SequenceLayout::unsharded(count),
                          make_rotary(shape_, positions, dtype, options_.device(), cache.capacity()),
                          make_local_rotary(shape_, positions, dtype, options_.device()), &cache};
  return model_->next_logits(at::tensor(ids, at::kLong).to(options_.device()), sequence);
}

}  // namespace meshtrain
