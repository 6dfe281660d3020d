#include "runtime/training/transformer/sequences.h"

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

Rotary angles_of(const at::Tensor& positions, const TransformerOptions& options, at::Device device) {
  return make_rotary(options.shape, positions, options.precision.compute, device, options.batch.sequence_length);
}

Rotary local_angles_of(const at::Tensor& positions, const TransformerOptions& options, at::Device device) {
  return make_local_rotary(options.shape, positions, options.precision.compute, device);
}

Sequence one_document_each(SequenceLayout layout, const TransformerOptions& options, at::Device device) {
  const at::Tensor positions = layout.positions();
  Rotary rotary = angles_of(positions, options, device);
  Rotary local = local_angles_of(positions, options, device);
  return {std::move(layout), std::move(rotary), std::move(local)};
}

}  // namespace

SequenceLayout sequence_layout(SequenceLayout::Kind kind, int64_t sequence_length, const DeviceMesh& mesh) {
  return SequenceLayout(kind, sequence_length, static_cast<int>(mesh.size(kContextAxis)),
                        static_cast<int>(mesh.coordinate(kContextAxis)));
}

Sequences::Sequences(const TransformerOptions& options, const DeviceMesh& mesh, at::Device device)
    : undivided_(one_document_each(sequence_layout(options.context.layout, options.batch.sequence_length, mesh),
                                   options, device)) {
  if (options.shape.adapter.dropout > 0) {
    const int64_t length = options.batch.sequence_length, rows = options.batch.micro_batch;
    positions_ = layout().take(at::arange(rows * length).view({rows, length}), 1).reshape(-1).to(device);
  }
  if (!options.has_documents) return;
  const at::Tensor positions = at::arange(options.batch.sequence_length);
  angles_ = angles_of(positions, options, device);
  local_angles_ = local_angles_of(positions, options, device);
}

Sequence Sequences::of(const DocumentStarts& documents) const {
  if (documents.empty()) return undivided_;
  const SequenceLayout& layout = undivided_.layout;
  Sequence sequence{layout.with_documents(documents), {}};
  set_positions(sequence, layout.take(document_positions(documents, layout.sequence_length()), 1));
  return sequence;
}

void Sequences::set_positions(Sequence& sequence, const at::Tensor& positions) const {
  sequence.rotary = angles_.value().select(positions);
  if (local_angles_.cos.defined()) sequence.local_rotary = local_angles_.select(positions);
}

Sequence Sequences::in_training(const MicroBatch& micro_batch) const {
  Sequence sequence = of(micro_batch.documents);
  if (micro_batch.positions.defined()) set_positions(sequence, layout().take(micro_batch.positions, 1));
  if (positions_.defined()) sequence.tokens = positions_ + micro_batch.first_sample * layout().sequence_length();
  return sequence;
}

}  // namespace meshtrain
