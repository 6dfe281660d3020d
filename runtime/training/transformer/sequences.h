#pragma once

#include <optional>

#include "mesh/device_mesh.h"
#include "runtime/training/data/documents.h"
#include "runtime/training/model/parallelism.h"
#include "runtime/training/trainer/micro_batch.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the layout of sequences on this rank of `mesh`.
SequenceLayout sequence_layout(SequenceLayout::Kind kind, int64_t sequence_length, const DeviceMesh& mesh);

/// The Sequence of each micro-batch. The constructor computes all angles; later calls only select them by position. No
/// function communicates or reads a value from the device.
class Sequences {
 public:
  Sequences(const TransformerOptions& options, const DeviceMesh& mesh, at::Device device);

  const SequenceLayout& layout() const { return undivided_.layout; }

  /// Returns the Sequence for these documents; positions begin at 0 in each. Empty `documents`: each sequence is one
  /// document and nothing is computed. Other values require TransformerOptions::has_documents.
  Sequence of(const DocumentStarts& documents) const;
  /// Returns the Sequence of a micro-batch in training, with the numbers of its tokens when adapters have dropout.
  /// Positions of its own require TransformerOptions::has_documents.
  Sequence in_training(const MicroBatch& micro_batch) const;

 private:
  void set_positions(Sequence& sequence, const at::Tensor& positions) const;  // [B, s], of this rank

  Sequence undivided_;            // each sequence is one document
  std::optional<Rotary> angles_;  // of the positions 0 to S - 1, with TransformerOptions::has_documents
  Rotary local_angles_;           // the same, see Sequence::local_rotary
  at::Tensor positions_;  // [T] of the tokens of a micro-batch, in sequences that follow each other; with dropout
};

}  // namespace meshtrain
