#include "runtime/training/transformer/evaluation.h"

#include <chrono>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/training/transformer/batch.h"
#include "runtime/training/transformer/read_ahead.h"

namespace meshtrain {

Evaluation::Evaluation(const EvaluationOptions& options, const TransformerOptions& trained, int64_t last_step)
    : options_(options),
      batch_(trained.batch),
      layout_(trained.context.layout),
      last_step_(last_step),
      dataset_(options, batch_.sequence_length, trained.shape.vocab_size, trained.seed, "evaluate"),
      num_samples_(options.samples.value_or(dataset_.num_samples())) {
  if (num_samples_ <= dataset_.num_samples()) {
    if (dataset_.has_counted_label(num_samples_)) return;
    throw InputError("evaluate.tokens", "no label of the held-out samples of " + options_.tokens.string() +
                                            " counts: " + Key{"evaluate.ignore_id"} + ", " + Key{"evaluate.loss_mask"} +
                                            " or " + Key{"evaluate.boundary_labels"} + " ignores every one");
  }
  throw InputError("evaluate.samples", std::to_string(num_samples_) + " are requested, but " +
                                           options_.tokens.string() + " has " + std::to_string(dataset_.num_samples()) +
                                           ": request fewer, or leave the key out to use all");
}

bool Evaluation::is_due(int64_t step) const {
  return step == last_step_ || (options_.every > 0 && step % options_.every == 0);
}

bool Evaluation::counts_all() const {
  const bool ignores = options_.ignore_id || !options_.loss_mask.empty() || !options_.boundaries_count;
  return num_samples_ == dataset_.num_samples() && !ignores;
}

EvaluationMetrics Evaluation::run(const ModelParts& parts, const DeviceMesh& mesh,
                                  const std::function<void(int64_t)>& progress, const PipelineLinks* links) const {
  return *run(parts, mesh, links, progress, {});
}

std::optional<EvaluationMetrics> Evaluation::run_unless(const ModelParts& parts, const DeviceMesh& mesh,
                                                        const PipelineLinks* links,
                                                        const std::function<bool()>& is_stop_asked) const {
  const Group world = mesh.world().with_purpose("evaluate");
  return run(parts, mesh, links, {}, [&] {
    at::Tensor votes = at::full({1}, is_stop_asked() ? 1 : 0, at::kLong);
    world.all_reduce(votes).wait();
    return votes.item<int64_t>() > 0;
  });
}

std::optional<EvaluationMetrics> Evaluation::run(const ModelParts& parts, const DeviceMesh& mesh,
                                                 const PipelineLinks* links,
                                                 const std::function<void(int64_t)>& progress,
                                                 const std::function<bool()>& ends) const {
  const auto start = std::chrono::steady_clock::now();
  const int64_t micro_batch = batch_.micro_batch, at_once = mesh.size(kDataAxis) * micro_batch;
  const int64_t count = (num_samples_ + at_once - 1) / at_once;
  const SequenceLayout layout = sequence_layout(layout_, batch_.sequence_length, mesh);
  ReadAhead<MicroBatch> micro_batches(0, count, [&](int64_t i) {
    const int64_t first = i * at_once + mesh.coordinate(kDataAxis) * micro_batch;
    return read_micro_batch(dataset_, batch_, layout, first, num_samples_);
  });
  int64_t begun = 0;
  const auto next = [&] {
    if (progress) progress(begun++ * at_once);
    return micro_batches.next();
  };
  const std::optional<HeldOutLoss> loss = held_out_loss(parts, count, next, ends, links);
  if (!loss) return std::nullopt;
  return EvaluationMetrics{loss->mean, loss->num_counted,
                           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

std::unique_ptr<Evaluation> make_evaluation(const EvaluationOptions& options, const TransformerOptions& trained,
                                            int64_t last_step) {
  return options.tokens.empty() ? nullptr : std::make_unique<Evaluation>(options, trained, last_step);
}

}  // namespace meshtrain
