#pragma once

#include <vector>

#include "runtime/optimizer/adamw.h"
#include "runtime/optimizer/cut_matrix.h"

namespace meshtrain {

/// Muon: each matrix moves by the momentum of its gradients, made orthogonal. Jordan et al., 2024; Liu et al., "Muon is
/// scalable for LLM training", 2025. Everything else, embedding and head goes by AdamW.
///
///   v = momentum v + g;   u = g + momentum v (nesterov) or v
///   w = w - rate (weight_decay w + scale newton_schulz(u))
///   scale: match_rms_adamw 0.2 sqrt(max(rows, cols)), at which AdamW's learning rates fit; original
///   sqrt(max(1, rows / cols))
///
/// v lies in shards as gradients do. A matrix is whole on its owner alone (choose_owners): in a round every rank of the
/// world has one at most, gets the pieces of u of its copy of the model, and sends back those of the result; the ranks
/// of other copies get them from those who keep the same. A round's matrices are on their way while those of the one
/// before are computed. In fp64 where shards are, else in fp32, also on the way: w bytes an element. With N elements of
/// matrices in the model, H of them kept by their owners, all ranks together send
///   2 (N - H) w, and take part in broadcasts of R N w where R > 1 ranks keep the same
class Muon final : public Optimizer {
 public:
  Muon(const OptimizerRecipe& recipe, const std::vector<Unit>& units, const OptimizerOptions& options);
  std::vector<ShardTensor> state() const override;
  void resume(int64_t num_steps) override;

 protected:
  void update(const UpdateInputs& inputs) override;

 private:
  struct Matrix {
    CutMatrix layout;
    UpdateRule rule;
    double scale;
    int owner;
    const FlatBuffer* buffer;
    Range range;                             // of its shard: n elements
    at::Tensor values, gradients, momentum;  // [n]: what this rank keeps
  };
  /// Matrices of different owners, in the order of these.
  using Round = std::vector<const Matrix*>;
  struct Gathered {
    at::Tensor sent, received;
    Work work;
  };

  void make_rounds();
  /// Starts bringing a round's matrices to their owners.
  Gathered gather(const Round& round, const at::Tensor& gradient_factor);
  /// What they make of them, for what the ranks of this copy keep: [n], end to end in the order of the round.
  at::Tensor scatter(const Round& round, const Gathered& gathered);
  void apply(const Matrix& matrix, const at::Tensor& update, double learning_rate);

  OptimizerRecipe recipe_;
  ReplicaMap replicas_;
  Group world_, holders_;  // its world() and replicas()
  AdamW others_;
  std::vector<Matrix> matrices_;
  std::vector<Round> rounds_;
  int rank_;
};

}  // namespace meshtrain
