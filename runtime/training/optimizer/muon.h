#pragma once

#include <list>
#include <vector>

#include "runtime/training/optimizer/adamw.h"
#include "runtime/training/optimizer/cut_matrix.h"

namespace meshtrain {

/// Muon: each matrix moves by the orthogonalised momentum of its gradients. Jordan et al., 2024; Liu et al., "Muon is
/// scalable for LLM training", 2025. AdamW updates everything else, embedding and head included.
///
///   v = momentum v + g;   u = g + momentum v (nesterov) or v
///   w = w - rate (weight_decay w + scale newton_schulz(u))
///   scale: MatchRmsAdamW 0.2 sqrt(max(rows, cols)), at which AdamW's learning rates fit; Original
///   sqrt(max(1, rows / cols)); Spectral sqrt(max(rows, cols)); UnitRmsNorm sqrt(rows / cols); times scale_factor
///
/// v is sharded as gradients are. Only its owner assembles a matrix (choose_owners). Each group of parameters has its
/// own rounds, over the ranks that hold the group. In a round each of these ranks owns at most one matrix. The owner
/// gathers the pieces of u from its replica of the model and scatters the pieces of the result. Ranks of other replicas
/// receive these pieces by broadcast from the ranks that keep the same ones. The communication of a round overlaps the
/// computation of the round before. Values are computed and sent in fp64 if shards are fp64, else in fp32: w bytes for
/// each element. The model's matrices have N elements; owners keep H of these themselves. All ranks together send
///   2 (N - H) w, and take part in broadcasts of R N w where R > 1 ranks keep the same
class Muon final : public Optimizer {
 public:
  Muon(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
       const std::optional<StochasticRounding>& rounding);
  std::vector<ShardTensor> state() const override;
  std::vector<StatePager*> pagers() const override;
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
  /// Matrices of different owners, in the order of the owners.
  using Round = std::vector<const Matrix*>;
  struct MatrixGather {
    at::Tensor sent, received;
    Work work;
  };

  /// The matrices of one group of parameters. Must not be moved, because layouts refer to its ReplicaMap.
  struct Part {
    Part(const OptimizerOptions& options, const ParameterGroup& group);
    void make_rounds();

    ReplicaMap replicas;
    Group world, holders;  // its world() and replicas()
    int rank;
    std::vector<Matrix> matrices;
    std::vector<Round> rounds;
  };

  void update(const Part& part, const at::Tensor& gradient_factor, double learning_rate);
  /// Calls `use` with the momentum of a matrix, on the device. Matrices must come in the order of their rounds.
  void with_momentum(const Matrix& matrix, const std::function<void(const at::Tensor& momentum)>& use);
  /// Starts gathering a round's matrices on their owners.
  MatrixGather gather(const Part& part, const Round& round, const at::Tensor& gradient_factor);
  /// Orthogonalises this rank's matrix of a round, if it owns one, and scatters the results. Returns the updates by
  /// owners in this rank's replica of the elements that this rank keeps: [n], end to end in the order of the round.
  at::Tensor scatter(const Part& part, const Round& round, const MatrixGather& gathered);
  void apply(const Matrix& matrix, const at::Tensor& update, double learning_rate);

  OptimizerOptions options_;
  AdamW others_;
  std::list<Part> parts_;
  std::unique_ptr<StatePager> pager_;  // of momentum
};

}  // namespace meshtrain
