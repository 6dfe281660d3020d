#include "runtime/program/recipe/decisions.h"

#include "mesh/base/error.h"
#include "runtime/program/recipe/context.h"
#include "runtime/program/recipe/pipeline.h"
#include "runtime/program/recipe/sharding.h"
#include "runtime/program/recipe/validate.h"
#include "runtime/program/yaml/rule.h"
#include "runtime/program/yaml/writer.h"

namespace meshtrain {
namespace {

const WordsOf<at::ScalarType> kDtypes = {{"fp64", at::kDouble},         {"fp32", at::kFloat},
                                         {"fp16", at::kHalf},           {"bf16", at::kBFloat16},
                                         {"bf16_mixed", at::kBFloat16}, {"fp16_mixed", at::kHalf}};
const WordsOf<Recompute> kRecomputes = {
    {"none", Recompute::Nothing}, {"selective", Recompute::Elementwise}, {"full", Recompute::All}};
const WordsOf<Offload> kOffloads = {{"none", Offload::None}, {"host", Offload::Host}, {"disk", Offload::Disk}};
const WordsOf<DeviceRequest::Kind> kDevices = {
    {"auto", DeviceRequest::Kind::Auto}, {"cpu", DeviceRequest::Kind::Cpu}, {"cuda", DeviceRequest::Kind::Cuda}};
const WordsOf<DeviceRequest::Transport> kTransports = {{"auto", DeviceRequest::Transport::Auto},
                                                       {"mpi", DeviceRequest::Transport::Mpi},
                                                       {"nccl", DeviceRequest::Transport::Nccl}};
const WordsOf<NcclBuffers> kBuffers = {
    {"off", NcclBuffers::Off}, {"registered", NcclBuffers::Registered}, {"symmetric", NcclBuffers::Symmetric}};

at::ScalarType reduce_dtype_of(const Recipe& recipe) {
  const std::string &precision = recipe.train.precision, &asked = recipe.parallel.fsdp.reduce_dtype;
  const at::ScalarType compute = dtype_of(precision);
  if (compute == at::kDouble || compute == at::kFloat) return compute;
  if (asked != "auto") return dtype_of(asked);
  return precision.ends_with("_mixed") ? at::kFloat : compute;
}

Precision precision_of(const Recipe& recipe) {
  const TrainRecipe& train = recipe.train;
  Precision precision;
  precision.compute = dtype_of(train.precision);
  precision.residual = train.residual_dtype == "fp32" ? at::kFloat : precision.compute;
  precision.mixed = train.precision.ends_with("_mixed");
  precision.reduce = reduce_dtype_of(recipe);
  return precision;
}

TrainerOptions trainer_options(const Recipe& recipe) {
  const TrainRecipe& train = recipe.train;
  TrainerOptions options{.optimizer = recipe.optimizer, .clip_norm = train.clip_norm};
  if (recipe.model.shape.adapter) options.saved_frozen = {"*.lora_A.weight", "*.lora_B.weight"};  // not the base
  if (!options.optimizer.state_dtype) {
    options.optimizer.state_dtype = train.precision.ends_with("_mixed") ? at::kFloat : dtype_of(train.precision);
  }
  if (train.precision == "fp16_mixed") options.loss_scale = train.loss_scale.value_or(LossScaleOptions{});
  options.skip_outliers = train.skip_outliers;
  if (train.stochastic_rounding && train.precision == "bf16") options.rounding_seed = train.seed;
  return options;
}

/// Returns true when the residual stream is cut over tp. `auto`: when tp > 1 divides the tokens of a micro-batch.
bool is_sequence_parallel(const Recipe& recipe, const MeshLayout& layout) {
  const TrainRecipe& train = recipe.train;
  const int64_t tp = layout.size(kTensorAxis),
                tokens = train.micro_batch * (train.sequence_length / layout.size(kContextAxis));
  const std::string& asked = recipe.parallel.sequence_parallel;
  return tp > 1 && (asked == "on" || (asked == "auto" && tokens % tp == 0));
}

/// Returns the options of the recipe. A pipeline with mode auto reduces gradients once a step.
FsdpOptions fsdp_of(const Recipe& recipe, const MeshLayout& layout) {
  const FsdpRecipe& asked = recipe.parallel.fsdp;
  FsdpOptions options = asked.options;
  if (asked.mode == "auto" && layout.size(kPipelineAxis) > 1) options.accumulate_unsharded = true;
  return options;
}

/// Returns the shape of the model; dropout depends on train.seed.
ModelShape shape_of(const Recipe& recipe) {
  ModelShape shape = recipe.model.shape;
  shape.adapter.seed = static_cast<uint64_t>(recipe.train.seed);
  return shape;
}

Decisions decide(const Recipe& recipe, const MeshLayout& layout) {
  const ModelRecipe& model = recipe.model;
  const ParallelRecipe& parallel = recipe.parallel;
  const CheckpointingRecipe& checkpointing = recipe.train.activation_checkpointing;
  const ShardingChoice sharding = sharding_choice(recipe, layout);
  const PipelineChoice pipeline = pipeline_choice(recipe, layout);
  return {
      {{
           .shape = shape_of(recipe),
           .weights = model.init == "pretrained" ? model.hf : std::filesystem::path(),
           .seed = static_cast<uint64_t>(recipe.train.seed),
           .freeze = recipe.train.freeze,
           .frozen_row = model.freeze_padding_row ? model.shape.pad_token_id : std::nullopt,
           .batch = recipe.train,
           .has_documents = has_documents(recipe),
           .precision = precision_of(recipe),
           .sequence_parallel = is_sequence_parallel(recipe, layout),
           .context = context_choice(recipe, layout),
           .recomputation = {value_of(kRecomputes, checkpointing.mode), checkpointing.every, checkpointing.first,
                             pipeline.blocks},
           .pipeline = pipeline,
           .sharding = sharding,
           .units = {.layers = parallel.fsdp.unit_layers, .sublayers = parallel.fsdp.unit == "sublayer"},
           .fsdp = fsdp_of(recipe, layout),
           .offload = offload_kind(parallel.fsdp.offload.to),
           .offload_folder = parallel.fsdp.offload.path,
           .offload_parameters = parallel.fsdp.offload.parameters,
           .offload_activations = recipe.train.offload_activations,
           .balancing = recipe.train.experts.value_or(BalancingOptions{}),
           .z_loss = recipe.train.z_loss,
       },
       trainer_options(recipe)},
      layout,
      {.kind = device_kind(recipe.device),
       .transport = value_of(kTransports, parallel.backend),
       .allocator = recipe.train.cuda_allocator,
       .nccl_buffers = value_of(kBuffers, parallel.nccl_user_buffers),
       .two_queues = gathers_beside_reductions(sharding.mode)},
  };
}

}  // namespace

Decisions resolve(const Recipe& recipe, const MeshLayout& layout) try {
  check_values(recipe, layout);
  const Decisions decisions = decide(recipe, layout);
  check_choices(recipe, decisions);
  return decisions;
} catch (const InputError& error) {
  if (recipe.locations.empty()) throw;
  if (!error.key().empty() && recipe.locations.contains(error.key())) throw located(error, recipe);
  throw InputError(recipe.locations.at("") + ": " + error.what());
}

InputError located(const InputError& error, const Recipe& recipe) {
  const auto found = recipe.locations.find(error.key());
  return error.key().empty() || found == recipe.locations.end() ? error : InputError(found->second, error.problem());
}

Recipe on_mesh(Recipe recipe, const MeshLayout& layout) {
  recipe.parallel.order.clear();
  recipe.parallel.mesh = layout.sizes();
  for (const Axis& axis : layout.axes()) recipe.parallel.order.push_back(axis.name);
  return recipe;
}

std::string to_yaml(const Decisions& decisions) {
  Writer writer;
  writer.map("mesh", [&](Writer& mesh) {
    for (const Axis& axis : decisions.layout.axes()) mesh.field(axis.name, axis.size);
    if (decisions.layout.ep() > 1) mesh.field(kExpertAxis, decisions.layout.ep());
  });
  writer.map("precision", [&](Writer& map) {
    const Precision& precision = decisions.precision;
    map.field("compute", word_of(kDtypes, precision.compute));
    map.field("residual", word_of(kDtypes, precision.residual));
    map.field("shards", word_of(kDtypes, precision.mixed ? at::kFloat : precision.compute));
    map.field("reduce", word_of(kDtypes, precision.reduce));
    map.field("state", word_of(kDtypes, *decisions.optimizer.state_dtype));
    map.field("loss_scale", std::string(!decisions.loss_scale         ? "none"
                                        : decisions.loss_scale->fixed ? "static"
                                                                      : "dynamic"));
    map.field("stochastic_rounding", decisions.rounding_seed.has_value());
  });
  if (const PipelineChoice& pipeline = decisions.pipeline; !pipeline.blocks.empty()) {
    writer.map("pipeline", [&](Writer& map) {
      map.field("schedule", name(pipeline.schedule));
      map.field("layers", pipeline.blocks);
    });
  }
  writer.map("fsdp", [&](Writer& fsdp) {
    const ShardingChoice& sharding = decisions.sharding;
    fsdp.field("mode", std::string(sharding.hybrid ? "hybrid_shard" : name(sharding.mode)));
    fsdp.field("axes", sharding.axes);
    fsdp.field("ranks", sharding.num_ranks);
    if (sharding.shard_size) fsdp.field("shard_size", *sharding.shard_size);
    if (sharding.hybrid && !sharding.shard_size) fsdp.field("shard_size", std::string("the ranks of a host"));
    fsdp.field("no_sync", decisions.fsdp.accumulate_unsharded);
    fsdp.field("offload", word_of(kOffloads, decisions.offload));
    if (decisions.offload != Offload::None) fsdp.field("offload_parameters", decisions.offload_parameters);
  });
  writer.field("sequence_parallel", std::string(decisions.sequence_parallel ? "on" : "off"));
  writer.map("context", [&](Writer& context) {
    context.field("algorithm", std::string(name(decisions.context.algorithm)));
    context.field("layout", std::string(name(decisions.context.layout)));
    context.field("reason", decisions.context.reason);
  });
  writer.map("activation_checkpointing", [&](Writer& map) {
    map.field("mode", word_of(kRecomputes, decisions.recomputation.what));
    map.field("every", decisions.recomputation.every);
    if (decisions.recomputation.first) map.field("first", *decisions.recomputation.first);
  });
  writer.field("offload_activations", decisions.offload_activations);
  writer.map("device", [&](Writer& device) {
    device.field("asked", word_of(kDevices, decisions.device.kind));
    device.field("backend", word_of(kTransports, decisions.device.transport));
  });
  return writer.text();
}

at::ScalarType dtype_of(const std::string& precision) {
  return value_of(kDtypes, precision);
}

Offload offload_kind(const std::string& word) {
  return value_of(kOffloads, word);
}

DeviceRequest::Kind device_kind(const std::string& word) {
  return value_of(kDevices, word);
}

}  // namespace meshtrain
