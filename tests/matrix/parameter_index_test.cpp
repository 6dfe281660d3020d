// Ranks that hold different parameters, in one or two groups: everything that uses the model's index of parameters
// gives the results of one rank that holds them all.

#include "mesh/parameter_index.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <set>

#include "mesh/agree.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/export_model.h"
#include "runtime/program/verify/comparison.h"
#include "runtime/program/verify/replicas.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/initialize.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/optimizer/optimizer.h"
#include "runtime/training/safetensors/folder.h"
#include "runtime/training/trainer/find_non_finite.h"
#include "runtime/training/trainer/ownership.h"
#include "runtime/training/trainer/parameter_meter.h"
#include "runtime/training/transformer/data_parallel.h"
#include "tests/matrix/comparison.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr const char* kOfTheFirst = "model.layers.0.mlp.up_proj.weight";
constexpr const char* kOfTheSecond = "model.layers.1.self_attn.k_proj.weight";

/// A small model that is not trained: some of its layers in groups of parameters, with values and gradients that depend
/// only on names and elements.
class Part {
 public:
  /// Every rank of `mesh` must construct the same part. `groups`: the layers of each group, and its sharding.
  Part(const DeviceMesh& mesh, const std::vector<std::pair<std::vector<size_t>, ShardingMode>>& groups,
       at::ScalarType dtype = at::kDouble)
      : model_(small_model().shape, {{mesh.group(kTensorAxis), false}, {}}, at::TensorOptions().dtype(dtype)),
        index_(model_.parameters()) {
    const std::vector<Layer> layers = model_.layers();
    for (const auto& [numbers, mode] : groups) {
      auto options = small_model();
      options.sharding = {.mode = mode, .num_ranks = mesh.size(kDataAxis)};
      const ModelReplicas replicas = map_replicas(options.sharding, mesh);
      options.precision = precision_in(dtype);
      std::vector<UnitSpec> units;
      for (const size_t number : numbers) units.push_back({layers[number].name, layers[number].parameters});
      fsdp_.push_back(std::make_unique<Fsdp>(std::move(units), fsdp_options(options, replicas).dense));
      fsdp_.back()->write_values([](const Parameter& parameter) { initialize(parameter, 1); });
      groups_.push_back({fsdp_.back().get(), replicas.dense});
    }
    set_gradients();
  }

  const ParameterIndex& index() const { return index_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }

  /// Multiplies the first element of a gradient that this rank holds.
  void multiply_gradient(const std::string& name, double factor) {
    visit_gradients([&](const Parameter& parameter, at::Tensor kept) {
      if (parameter.name == name && kept.numel() > 0) kept[0].mul_(factor);
    });
  }

  /// Returns the sum of squared gradients over the elements that this rank owns.
  double owned_squares() const { return meshtrain::owned_squares(owned_ranges(groups_), at::kCPU).item<double>(); }

  /// Makes one update and returns the metrics of every parameter. Every rank of `everyone` must call it.
  std::vector<ParameterMetrics> update(const std::string& optimizer, const Group& everyone) {
    OptimizerOptions options;
    options.name = optimizer;
    options.momentum = 0.9;
    options.weight_decay = 0.1;
    ParameterMeter meter(index_, groups_, everyone);
    meter.before_update();
    make_optimizer(options, groups_)->step(0.01);
    for (const auto& fsdp : fsdp_) fsdp->shards_changed();
    return meter.read(meter.after_update());
  }

  /// Returns the weights that this rank holds, without padding.
  std::map<std::string, std::pair<Box, at::Tensor>> weights() {
    std::map<std::string, std::pair<Box, at::Tensor>> all;
    for (const auto& fsdp : fsdp_) {
      fsdp->visit_shards([&](const Parameter& parameter) {
        all[parameter.name] = {parameter.box, parameter.valid().clone()};
      });
    }
    return all;
  }

  /// Returns the parameters after an update. Every rank of `everyone` must call it.
  Trace trace(const Group& everyone) {
    Trace trace{{2.5}, {0.7}, {}};
    ParameterTracer tracer(index_, groups_);
    tracer.record_gradients();
    update("adamw", everyone);
    trace.parameters = tracer.finish();
    return trace;
  }

 private:
  /// Calls `visit` with each trainable parameter and the part of its gradient in this rank's shard, a view.
  void visit_gradients(const std::function<void(const Parameter&, const at::Tensor&)>& visit) {
    const at::NoGradGuard no_grad;
    for (const FlatBuffer* buffer : trainable_buffers(groups_)) {
      for (const Segment& segment : buffer->segments()) {
        const Range kept = buffer->in_shard({segment.offset, segment.numel});
        visit(*segment.parameter, buffer->shard_gradients().narrow(0, kept.offset, kept.numel));
      }
    }
  }

  void set_gradients() {
    const at::NoGradGuard no_grad;
    for (const FlatBuffer* buffer : trainable_buffers(groups_)) {
      buffer->shard_gradients().zero_();
      for (const Segment& segment : buffer->segments()) {
        const Parameter& parameter = *segment.parameter;
        const at::Tensor full = random_tensor(parameter.global_shape, 10 + index_.number(parameter.name));
        at::Tensor local = at::zeros(parameter.shape, full.options()), valid = local;
        for (int64_t dim = 0; dim < local.dim(); ++dim) valid = valid.narrow(dim, 0, parameter.box.size[dim]);
        valid.copy_(part(full, parameter.box));
        const Range kept = buffer->in_shard({segment.offset, segment.numel});
        if (kept.numel == 0) continue;
        const int64_t first = buffer->shard().offset + kept.offset - segment.offset;
        buffer->shard_gradients()
            .narrow(0, kept.offset, kept.numel)
            .copy_(local.flatten().narrow(0, first, kept.numel));
      }
    }
  }

  Transformer model_;
  ParameterIndex index_;
  std::vector<std::unique_ptr<Fsdp>> fsdp_;
  std::vector<ParameterGroup> groups_;
};

/// A world of two halves along "pp", the other ranks along dp or tp. The first half has the embedding and block 0, in
/// two groups; the second has block 1 and the head in one.
class DifferentParameters : public ::testing::TestWithParam<const char*> {
 protected:
  DifferentParameters() : alone_(one_rank_mesh()) {
    const int64_t others = std::max<int64_t>(world().size() / 2, 1);
    const bool cut = GetParam() == std::string("tp");
    mesh_ = std::make_unique<DeviceMesh>(
        MeshLayout({{"pp", world().size() / others}, {"dp", cut ? 1 : others}, {"tp", cut ? others : 1}}), world());
    half_ = std::make_unique<DeviceMesh>(mesh_->part({"dp", "tp"}));
  }
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "two halves need two ranks";
  }

  bool is_first() const { return mesh_->coordinate("pp") == 0; }

  std::unique_ptr<Part> make_half(at::ScalarType dtype = at::kDouble) const {
    if (!is_first()) return std::make_unique<Part>(*half_, Groups{{{2, 3}, ShardingMode::ShardOptimizer}}, dtype);
    return std::make_unique<Part>(*half_, Groups{{{0}, ShardingMode::NoShard}, {{1}, ShardingMode::FullShard}}, dtype);
  }
  std::unique_ptr<Part> make_full(at::ScalarType dtype = at::kDouble) const {
    return std::make_unique<Part>(alone_, Groups{{{0, 1, 2, 3}, ShardingMode::NoShard}}, dtype);
  }

  using Groups = std::vector<std::pair<std::vector<size_t>, ShardingMode>>;
  DeviceMesh alone_;
  std::unique_ptr<DeviceMesh> mesh_, half_;
};

TEST_P(DifferentParameters, HaveOneIndex) {
  const ParameterIndex seen = make_half()->index(), wanted = make_full()->index();
  ASSERT_EQ(seen.size(), wanted.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].name, wanted[i].name);
    EXPECT_EQ(seen[i].global_shape, wanted[i].global_shape);
    EXPECT_EQ(seen.number(seen[i].name), i);
  }
  EXPECT_THROW(seen.number("lm_head.bias"), std::out_of_range);
}

TEST_P(DifferentParameters, HaveTheNormOfOneRank) {
  at::Tensor squares = at::full({}, make_half()->owned_squares(), at::kDouble);
  world().all_reduce(squares).wait();
  const double wanted = make_full()->owned_squares();
  EXPECT_NEAR(squares.item<double>(), wanted, 1e-12 * wanted);
}

TEST_P(DifferentParameters, NameTheOneThatIsNotFinite) {
  for (const char* name : {kOfTheFirst, kOfTheSecond}) {
    const auto half = make_half();
    EXPECT_EQ(find_non_finite(half->index(), half->groups(), world()), "");
    half->multiply_gradient(name, std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(find_non_finite(half->index(), half->groups(), world()), name);
  }
}

TEST_P(DifferentParameters, AreUpdatedAndMeasuredAsOnOneRank) {
  for (const char* optimizer : {"adamw", "sgd", "muon"}) {
    const auto half = make_half(), full = make_full();
    const std::vector<ParameterMetrics> seen = half->update(optimizer, world());
    const std::vector<ParameterMetrics> wanted = full->update(optimizer, Group());
    ASSERT_EQ(seen.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(seen[i].name, wanted[i].name);
      EXPECT_NEAR(seen[i].grad_norm, wanted[i].grad_norm, 1e-12 * wanted[i].grad_norm) << wanted[i].name;
      EXPECT_NEAR(seen[i].weight_norm, wanted[i].weight_norm, 1e-12 * wanted[i].weight_norm) << wanted[i].name;
      EXPECT_NEAR(seen[i].update_norm, wanted[i].update_norm, 1e-10 * wanted[i].update_norm) << wanted[i].name;
      EXPECT_GT(wanted[i].update_norm, 0) << wanted[i].name;
    }
    const auto all = full->weights();
    for (const auto& [name, held] : half->weights()) {
      EXPECT_LT(relative_error(held.second, part(all.at(name).second, held.first)), 1e-12) << optimizer << " " << name;
    }
  }
}

TEST_P(DifferentParameters, AreComparedWithOneRank) {
  for (const auto& [precision, dtype] : {std::pair{"fp64", at::kDouble}, {"bf16", at::kFloat}}) {
    const auto reference_of = [&] { return make_full(dtype)->trace(Group()); };
    Reference reference{reference_of(), {}};
    if (is_rounded(precision)) reference.other = reference_of();
    const auto different = [&](const Trace& trace) {
      std::map<std::string, int64_t> ranks;
      const auto all = compare(trace, world().rank() == 0 ? &reference : nullptr, *mesh_, precision);
      EXPECT_EQ(all.size(), 2 + 2 * reference.trace.parameters.size() + (is_rounded(precision) ? 2 : 0));
      for (const Comparison& each : all) {
        EXPECT_NEAR(each.value, each.reference, 0.2 * each.reference) << each.name;
        if (each.equal()) continue;
        const bool all_weights = each.kind == Comparison::Kind::AllWeights;
        ranks[all_weights ? "all weights" : each.name] = all_weights ? 0 : each.rank;
      }
      return ranks;
    };
    Trace trace = make_half(dtype)->trace(world());
    EXPECT_EQ(different(trace), (std::map<std::string, int64_t>{}));

    const int64_t last = world().size() - 1;
    if (world().rank() == last) {
      for (TracedParameter& parameter : trace.parameters) {
        if (parameter.name == kOfTheSecond) parameter.movement.mul_(1.1);
      }
    }
    std::map<std::string, int64_t> wanted{{kOfTheSecond, last}};
    if (is_rounded(precision)) wanted["all weights"] = 0;
    EXPECT_EQ(different(trace), wanted);
  }
}

TEST_P(DifferentParameters, AreComparedWithTheirReplicas) {
  Trace trace = make_half()->trace(world());
  const int64_t last = world().size() - 1;
  for (TracedParameter& parameter : trace.parameters) {
    if (parameter.name == "model.embed_tokens.weight" && parameter.held() && mesh_->coordinate("dp") == 1) {
      parameter.gradient[0] += 1;
    }
    if (parameter.name == "model.norm.weight" && world().rank() == last) parameter.gradient[0] += 1;
  }
  const std::vector<Replicas> all = compare_replicas(trace, *mesh_, 1e-10);
  ASSERT_EQ(all.size(), mesh_->size() > 2 ? 2u : 1u);
  EXPECT_EQ(all[0].axis, "pp");
  EXPECT_EQ(all[0].num_compared, 0);
  if (all.size() == 1) return;
  EXPECT_EQ(all[1].axis, GetParam());
  const bool cut = all[1].axis == "tp";
  EXPECT_EQ(all[1].num_compared, cut ? 5 : 1);  // tp: four norms in blocks and the last norm; dp: the embedding
  EXPECT_EQ(all[1].num_different, 1);
  EXPECT_EQ(all[1].worst, cut ? "model.norm.weight" : "model.embed_tokens.weight");
}

TEST_P(DifferentParameters, AreExportedTogether) {
  const ScratchFolder folder(world());
  const auto half = make_half(at::kFloat), full = make_full(at::kFloat);
  const ModelShape shape = small_model().shape;
  export_model(half->index(), half->groups(), shape, {}, *mesh_, folder.path() / "exported");
  const SafetensorsFolder exported(folder.path() / "exported");
  const auto wanted = full->weights();
  EXPECT_EQ(exported.names().size(), wanted.size());
  for (const auto& [name, weight] : wanted)
    EXPECT_TRUE(at::equal(exported.read(name, weight.first), weight.second)) << name;
}

TEST_P(DifferentParameters, ThatNobodyHoldsAreNotExported) {
  const ScratchFolder folder(world());
  const Part first(*half_, {{{0, 1}, ShardingMode::NoShard}}, at::kFloat);
  EXPECT_THROW(export_model(first.index(), first.groups(), small_model().shape, {}, *mesh_, folder.path() / "exported"),
               AgreedError);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "exported"));
}

INSTANTIATE_TEST_SUITE_P(Along, DifferentParameters, ::testing::Values("dp", "tp"));

}  // namespace
}  // namespace meshtrain::testing
