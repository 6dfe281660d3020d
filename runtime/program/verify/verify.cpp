#include "runtime/program/verify/verify.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "context_parallel/attention_choice.h"
#include "mesh/agree.h"
#include "mesh/base/available_memory.h"
#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "mesh/skipped_sums.h"
#include "runtime/program/forecast/forecast.h"
#include "runtime/program/forecast/mesh_forecast.h"
#include "runtime/program/launch/connect_devices.h"
#include "runtime/program/verify/choices.h"
#include "runtime/program/verify/made_samples.h"
#include "runtime/program/verify/replicas.h"
#include "runtime/program/verify/report.h"
#include "runtime/program/verify/shrink.h"
#include "runtime/program/watch/phase.h"
#include "runtime/program/yaml/suggest.h"
#include "runtime/training/data/mixture.h"

namespace meshtrain {
namespace {

using Print = std::function<void(const std::string&)>;

DeviceMesh one_rank_mesh() {
  return DeviceMesh(MeshLayout::fit({}, training_axes(), 1), Group());
}

/// Returns the kernels that attention used on this rank's GPU, one line each.
std::string describe_attention() {
  std::string text;
  for (const std::string& line : chosen_attention()) text += "attention by " + line + "\n";
  return text;
}

class Verification {
 public:
  Verification(const VerifySetup& setup, const VerifyOptions& options, const Group& world)
      : setup_(setup),
        options_(options),
        device_context_(connect_devices(setup.decisions.device, world)),
        world_(device_context_.world),
        seen_(std::make_shared<SumsSeen>()),
        mesh_(setup.decisions.layout,
              options.skipped_sums.empty() ? world_ : skip_sums(world_, options.skipped_sums, seen_)) {}

  bool run(const Print& print) {
    set_rank_name(mesh_.world().coordinate_text());
    open_data();
    if (!device_context_.fallback.empty()) tell(print, [&] { return device_context_.fallback + "\n"; });
    tell(print, [&] { return describe_verification(setup_, options_, data_) + "\n"; });
    check_memory();
    agree(world_, [&] {
      if (world_.rank() == 0) run_on_one_rank();
    });
    choices_ = broadcast_choices(choices_, setup_.decisions, options_.steps, world_);
    ChoiceComparison choices;
    const Trace trace = run_on(mesh_, setup_.recipe, &choices);
    refuse_unused_fault();

    std::vector<Comparison> all = compare_with_reference(trace, mesh_);
    if (choices.compared > 0 && !choices.replayed) all.insert(all.begin(), comparison_of(choices));
    tell(print, [&] {
      return comparison_table(all, setup_.decisions.layout, options_.every_parameter) + describe_choices(choices) +
             verdict(all);
    });
    if (device_context_.device.is_cuda()) tell(print, describe_attention);
    if (!all_equal(all)) {
      const std::vector<AxisFinding> findings = look_at_axes(trace);
      tell(print, [&] { return diagnosis(all, findings, setup_.decisions.layout); });
    }
    return all_equal(all);
  }

 private:
  void tell(const Print& print, const std::function<std::string()>& text) const {
    if (world_.rank() == 0) print(text());
  }

  /// Opens the data. Rank 0 decides for all ranks whether the file exists: a file that only some ranks see must not
  /// lead to two sets of tokens.
  void open_data() {
    if (options_.samples != nullptr) return;
    const DataOptions& data = setup_.asked.data;
    std::error_code unreadable;
    const std::vector<MixedSource> sources = data.sources();
    const auto is_there = [&](const SourceOptions& source) {
      return std::filesystem::exists(source.tokens, unreadable);
    };
    at::Tensor made = at::full({1}, std::ranges::all_of(sources, is_there) ? 0 : 1, at::kLong);
    world_.broadcast(made, 0).wait();
    data_.made = made.item<int64_t>() != 0;
    agree(world_, [&] {
      const TrainRecipe& train = setup_.asked.train;
      const int64_t vocab_size = setup_.asked.model.shape.vocab_size;
      const uint64_t seed = static_cast<uint64_t>(train.seed);
      if (data_.made) {
        const auto packed =
            std::ranges::find_if(sources, [](const auto& source) { return source.documents.has_value(); });
        samples_ = std::make_unique<MadeSamples>(packed == sources.end() ? sources.front() : *packed,
                                                 train.sequence_length, vocab_size, seed);
      } else {
        auto mixture = std::make_unique<Mixture>(data, train.sequence_length, vocab_size, seed);
        data_.num_samples = mixture->num_samples();
        samples_ = std::move(mixture);
      }
    });
  }

  /// Returns the bytes that the steps on one rank need in the widest precision of the reference; 0 when there is no
  /// forecast of them.
  int64_t memory_of_one_rank() const try {
    const Recipe recipe = in_precision(on_one_rank(setup_.recipe), is_rounded(options_.precision) ? "fp32" : "fp64");
    const Decisions decisions = resolve(recipe, one_rank_mesh().layout());
    return forecast_rank(decisions, forecast_request(recipe, 1, 1, /*machine=*/nullptr).hosts, 0).memory().total();
  } catch (const std::exception&) {  // the trainer says why
    return 0;
  }

  /// Throws InputError when the steps on one rank need more memory than this machine has: without this check its
  /// system would end this process, or another one, in their midst.
  void check_memory() const {
    agree(world_, [&] {
      if (world_.rank() != 0 || !device_context_.device.is_cpu()) return;
      const int64_t needed = memory_of_one_rank();
      const int64_t free = std::min(available_host_memory(), available_address_space());
      if (needed <= free) return;
      throw InputError("the steps on one rank need " + size_text(needed) + ", and this machine has " + size_text(free) +
                       " free: " +
                       (options_.shrink ? "use a machine with more memory"
                                        : "give --shrink, which verifies a smaller model of the same kind"));
    });
  }

  std::vector<StepBatch> read(const DeviceMesh& mesh, const SequenceLayout& layout) const {
    std::vector<StepBatch> batches;
    for (int64_t step = 0; step < options_.steps; ++step) {
      const Samples& samples = options_.samples != nullptr ? *options_.samples : *samples_;
      batches.push_back(read_step(samples, setup_.asked.train, mesh, layout, step));
      if (options_.shrink) fold_ids(batches.back(), setup_.recipe.model.shape.vocab_size);
    }
    return batches;
  }

  /// Returns true when the mesh computes with the choices of experts of one rank: rounding could choose others.
  bool replays() const { return options_.precision != "fp64"; }

  static Comparison comparison_of(const ChoiceComparison& choices) {
    const auto changed = static_cast<double>(choices.changed);
    return {Comparison::Kind::Choices, "", changed, 0, changed / static_cast<double>(choices.compared), 0};
  }

  void run_on_one_rank() {
    const Phase phase("the steps on one rank");
    const DeviceMesh alone = one_rank_mesh();
    reference_ = make_reference(options_.precision, device_context_.device.is_cpu(), [&](const std::string& precision) {
      const Recipe recipe = in_precision(on_one_rank(setup_.recipe), precision);
      TransformerTrainer trainer(resolve(recipe, alone.layout()), alone, device_context_.device);
      use_choices(trainer, {.records = !choices_, .reference = choices_, .replays = choices_ != nullptr});
      Trace steps = trace_steps(trainer, read(alone, trainer.layout()), recipe.optimizer.learning_rate, "one rank");
      if (!choices_) choices_ = recorded_choices(trainer, options_.steps);
      if (is_rounded(precision)) refuse_overflow(steps);
      return steps;
    });
  }

  /// Throws InputError for steps whose gradients overflow: they change nothing, so nothing could be compared.
  void refuse_overflow(const Trace& alone) const {
    const auto is_finite = [](double value) { return std::isfinite(value); };
    if (std::all_of(alone.grad_norms.begin(), alone.grad_norms.end(), is_finite)) return;
    throw InputError("in " + options_.precision + " the gradients of one rank are not finite" +
                     (options_.precision == "fp16_mixed"
                          ? ": lower train.loss_scale.initial, or train.loss_scale.static if it is set"
                          : ": compare in fp32 or fp64, or start from smaller weights"));
  }

  /// Runs the steps on `mesh`. Changes the type of an error on one rank between collectives, which leaves the other
  /// ranks waiting: it must not look like an error that all ranks know.
  /// `choices`, unless null: receives the comparison of experts.
  Trace run_on(const DeviceMesh& mesh, const Recipe& recipe, ChoiceComparison* choices = nullptr) const {
    const Phase phase("the steps on mesh " + mesh.layout().describe());
    std::unique_ptr<TransformerTrainer> trainer;
    std::vector<StepBatch> batches;
    agree(mesh.world(), [&] {
      trainer = std::make_unique<TransformerTrainer>(resolve(recipe, mesh.layout()), mesh, device_context_.device);
      batches = read(mesh, trainer->layout());
    });
    use_choices(*trainer, {.reference = choices_, .replays = choices_ != nullptr && replays()});
    try {
      Trace steps = trace_steps(*trainer, batches, recipe.optimizer.learning_rate, "mesh " + mesh.layout().describe());
      if (choices != nullptr) *choices = compare_choices(*trainer, replays());
      return steps;
    } catch (const AgreedError& error) {
      if (options_.skipped_sums.empty()) throw;
      throw RankError<std::runtime_error>(mesh.world().coordinate_text() + ": " + error.what());
    } catch (const std::exception& error) {
      throw RankError<std::runtime_error>(mesh.world().coordinate_text() + ": " + error.what());
    }
  }

  void refuse_unused_fault() const {
    if (options_.skipped_sums.empty() || seen_->num_skipped > 0) return;
    std::set<std::string> possible = seen_->purposes;
    for (const std::string& purpose : seen_->purposes) possible.insert(purpose.substr(0, purpose.find('.')));
    throw InputError(
        "--inject skip-reduce:" + options_.skipped_sums + ": mesh " + setup_.decisions.layout.describe() +
        " sums nothing for " + options_.skipped_sums +
        (possible.empty() ? ", nor for anything else" : ": use " + joined({possible.begin(), possible.end()})));
  }

  std::vector<Comparison> compare_with_reference(const Trace& trace, const DeviceMesh& mesh) const {
    return compare(trace, reference_ ? &*reference_ : nullptr, mesh, options_.precision);
  }

  /// Checks each axis alone: whether its ranks hold the same gradients, and what a mesh of this axis alone computes.
  std::vector<AxisFinding> look_at_axes(const Trace& trace) const {
    std::vector<AxisFinding> findings;
    for (const Replicas& replicas : compare_replicas(trace, mesh_, value_tolerance(options_.precision))) {
      findings.push_back({replicas, {}});
    }
    for (AxisFinding& finding : findings) {
      const std::string& axis = finding.replicas.axis;
      bool takes_part = findings.size() > 1;
      for (const Axis& other : setup_.decisions.layout.axes()) {
        takes_part = takes_part && (other.name == axis || mesh_.coordinate(other.name) == 0);
      }
      if (takes_part) finding.alone = run_alone(axis);
    }
    return findings;
  }

  /// Runs a mesh of one axis on the ranks that are first along every other axis. Rank 0 is its rank 0.
  std::vector<Comparison> run_alone(const std::string& axis) const {
    std::vector<Axis> axes = setup_.decisions.layout.axes();
    for (Axis& each : axes) {
      if (each.name != axis) each.size = 1;
    }
    if (axis != kPipelineAxis) std::erase_if(axes, [](const Axis& each) { return each.name == kPipelineAxis; });
    const DeviceMesh mesh(MeshLayout(axes), mesh_.group(axis));
    Recipe recipe = setup_.recipe;
    FsdpRecipe& fsdp = recipe.parallel.fsdp;
    if (fsdp.mode == "hybrid_shard")
      fsdp.mode = "full_shard", fsdp.shard_size.reset();  // the axis may have too few ranks for shard_size
    try {
      return compare_with_reference(run_on(mesh, recipe), mesh);
    } catch (const AgreedError& error) {  // an error of this axis, which the other ranks do not know
      throw RankError<std::runtime_error>(mesh.world().coordinate_text() + ": " + error.what());
    }
  }

  const VerifySetup& setup_;
  const VerifyOptions& options_;
  DeviceContext device_context_;
  Group world_;
  std::shared_ptr<SumsSeen> seen_;
  DeviceMesh mesh_;
  VerifyData data_;
  std::unique_ptr<Samples> samples_;
  std::optional<Reference> reference_;         // on rank 0
  std::shared_ptr<const RunChoices> choices_;  // of experts, on one rank; null without
};

}  // namespace

bool verify(const VerifySetup& setup, const VerifyOptions& options, const Group& world, const Print& print) {
  const Phase phase("the comparison for " + setup.asked.file.string());
  return Verification(setup, options, world).run(print);
}

}  // namespace meshtrain
