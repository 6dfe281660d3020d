#include "runtime/trainer/sequences.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "runtime/trainer/assemble.h"

namespace meshtrain {
namespace {

Rotary angles_of(const at::Tensor& positions, const Recipe& recipe, const RunPlan& plan, at::Device device) {
  return make_rotary(recipe.model.shape, positions, plan.precision.compute, device, recipe.train.sequence_length);
}

Rotary local_angles_of(const at::Tensor& positions, const Recipe& recipe, const RunPlan& plan, at::Device device) {
  return make_local_rotary(recipe.model.shape, positions, plan.precision.compute, device);
}

bool packs_documents(const Recipe& recipe) {
  const auto divided = [](const SourceOptions& source) { return source.documents.has_value(); };
  return std::ranges::any_of(recipe.data.sources(), divided) ||
         (!recipe.evaluate.tokens.empty() && divided(recipe.evaluate));
}

Sequence one_document_each(SequenceLayout layout, const Recipe& recipe, const RunPlan& plan, at::Device device) {
  const at::Tensor positions = layout.positions();
  Rotary rotary = angles_of(positions, recipe, plan, device);
  Rotary local = local_angles_of(positions, recipe, plan, device);
  return {std::move(layout), std::move(rotary), std::move(local)};
}

}  // namespace

Sequences::Sequences(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh, at::Device device)
    : undivided_(one_document_each(make_layout(recipe, plan, mesh), recipe, plan, device)) {
  if (!packs_documents(recipe)) return;
  const at::Tensor positions = at::arange(recipe.train.sequence_length);
  angles_ = angles_of(positions, recipe, plan, device);
  local_angles_ = local_angles_of(positions, recipe, plan, device);
}

Sequence Sequences::of(const DocumentStarts& documents) const {
  if (documents.empty()) return undivided_;
  const SequenceLayout& layout = undivided_.layout;
  const at::Tensor positions = layout.take(document_positions(documents, layout.sequence_length()), 1);
  return {layout.with_documents(documents), angles_.value().select(positions),
          local_angles_.cos.defined() ? local_angles_.select(positions) : Rotary{}};
}

}  // namespace meshtrain
