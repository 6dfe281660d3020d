#include "runtime/program/recipe/validate.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "runtime/program/recipe/context.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/pipeline.h"
#include "runtime/program/recipe/sharding.h"
#include "runtime/program/yaml/scalar_text.h"
#include "runtime/training/model/families.h"
#include "runtime/training/optimizer/optimizer.h"

namespace meshtrain {
namespace {

std::string number(int64_t value) {
  return std::to_string(value);
}

/// Checks the device against the transport. connect_devices() finds out, when the run starts, whether GPUs exist.
void check_device(const DeviceRequest& request) {
  const bool nccl = request.transport == DeviceRequest::Transport::Nccl;
  if (nccl && request.kind == DeviceRequest::Kind::Cpu) {
    throw InputError("parallel.backend",
                     "nccl communicates between GPUs, but device is cpu: use device cuda, or backend mpi");
  }
}

/// Throws InputError unless train.precision is `needed`, as `value` of `key` requires; an empty `value` stands for any.
void check_needs(const std::string& key, const std::string& value, const std::string& needed,
                 const TrainRecipe& train) {
  if (train.precision == needed) return;
  throw InputError(key, value + (value.empty() ? "" : " ") + "needs train.precision " + needed + ", but it is " +
                            train.precision + ": change the precision or leave it out");
}

void check_precision(const Recipe& recipe) {
  const TrainRecipe& train = recipe.train;
  const std::string& reduced = recipe.parallel.fsdp.reduce_dtype;
  if (reduced == "bf16" || reduced == "fp16")
    check_needs("parallel.fsdp.reduce_dtype", reduced, reduced + "_mixed", train);
  if (recipe.optimizer.state_dtype == at::kFloat && train.precision == "fp64") {
    throw InputError("optimizer.state_dtype",
                     "fp32 is less than train.precision fp64: leave it out, or use another precision");
  }
  if (train.residual_dtype == "fp32" && train.precision == "fp64") {
    throw InputError("train.residual_dtype",
                     "fp32 is less than train.precision fp64: leave it out, or use another precision");
  }
  if (train.stochastic_rounding) check_needs("train.stochastic_rounding", "true", "bf16", train);
  const std::string& optimizer = recipe.optimizer.name;
  if (train.stochastic_rounding && !optimizer_traits(optimizer).rounds_stochastically) {
    throw InputError("train.stochastic_rounding", "true rounds what adamw and sgd change, but optimizer.name is " +
                                                      optimizer + ": use one of them, or train.precision bf16_mixed");
  }
  if (!train.loss_scale) return;
  check_needs("train.loss_scale", "", "fp16_mixed", train);
  const LossScaleOptions& scale = *train.loss_scale;
  if (scale.fixed || scale.min <= scale.initial) return;
  throw InputError("train.loss_scale.min",
                   scalar_text(scale.min) + " is more than train.loss_scale.initial " + scalar_text(scale.initial));
}

/// Checks that the tensor-parallel ranks can share `count`, the value of `key`, evenly.
void check_shared(const std::string& key, int64_t count, int64_t tp) {
  if (count % tp == 0) return;
  throw InputError("model." + key,
                   number(count) + " does not divide over tp=" + number(tp) + ": use a mesh whose tp divides it");
}

/// Checks the length of sequences against scalings that depend on the length of each text.
void check_positions(const Recipe& recipe) {
  const ModelShape& shape = recipe.model.shape;
  const int64_t length = recipe.train.sequence_length;
  if (!shape.rope_scaling) return;
  const int64_t original = shape.rope_scaling->original_max_position_embeddings;
  if (shape.rope_scaling->type == "longrope" && length > original && has_documents(recipe)) {
    throw InputError("train.sequence_length",
                     number(length) + " is beyond the model's original_max_position_embeddings " + number(original) +
                         ", where longrope depends on the length of each document: use at most that, or samples of one "
                         "document (without data.documents)");
  }
  if (shape.rope_scaling->type != "dynamic" || length <= shape.max_position_embeddings) return;
  throw InputError("train.sequence_length",
                   number(length) + " is beyond the model's max_position_embeddings " +
                       number(shape.max_position_embeddings) +
                       ", where rope_type dynamic depends on the length of each text: use at most that");
}

void check_batch(const TrainRecipe& train, int64_t dp) {
  const int64_t at_once = dp * train.micro_batch;
  std::vector<BatchPhase> phases = train.phases;
  phases.push_back({.size = train.global_batch});
  const auto wrong = std::ranges::find_if(phases, [&](const BatchPhase& each) { return each.size % at_once != 0; });
  if (wrong == phases.end()) return;
  throw InputError("train.global_batch", number(wrong->size) + " is not a multiple of dp x micro_batch = " +
                                             number(dp) + " x " + number(train.micro_batch) + " = " + number(at_once) +
                                             ": change train.global_batch, train.micro_batch or the mesh");
}

void check_sequence(const Recipe& recipe, const Decisions& decisions) {
  const MeshLayout& layout = decisions.layout;
  const int64_t length = recipe.train.sequence_length, tp = layout.size(kTensorAxis), cp = layout.size(kContextAxis);
  check_heads(context_shape(recipe, layout), decisions.context.algorithm);
  const bool zigzag = decisions.context.layout == SequenceLayout::Kind::ZigZag && cp > 1;
  const int64_t chunks = zigzag ? 2 * cp : cp;
  if (length % chunks != 0) {
    throw InputError("train.sequence_length",
                     number(length) + " is not a multiple of " + (zigzag ? "2 x cp = " : "cp = ") + number(chunks) +
                         (zigzag ? ", the chunks of layout zigzag" : ", the parts that ranks hold") + ": change " +
                         Key{"train.sequence_length"} + " or the mesh" +
                         (zigzag && length % cp == 0 ? ", or set parallel.context.layout: contiguous" : ""));
  }
  const int64_t tokens = recipe.train.micro_batch * (length / cp);
  if (recipe.parallel.sequence_parallel == "on" && tokens % tp != 0) {
    throw InputError("parallel.sequence_parallel",
                     "on needs micro_batch x sequence_length / cp = " + number(recipe.train.micro_batch) + " x " +
                         number(length / cp) + " = " + number(tokens) + " tokens to divide over tp=" + number(tp) +
                         ": change one of them, or use auto or off");
  }
}

void check_schedule(const ScheduleOptions& schedule, int64_t train_steps) {
  const int64_t steps = schedule.total_steps.value_or(train_steps);
  const std::string key = std::string(schedule.total_steps ? "schedule.total_steps" : "train.steps") + " ";
  if (schedule.warmup_steps > steps) {
    throw InputError("schedule.warmup_steps", number(schedule.warmup_steps) + " is more than " + key + number(steps));
  }
  const int64_t end = steps + schedule.delay;
  if (schedule.name != Schedule::Constant && end < train_steps && schedule.min_ratio == 0) {
    throw InputError("schedule.total_steps", "the learning rate is 0 after step " + number(end) +
                                                 ", and train.steps is " + number(train_steps) +
                                                 ": set more, or a schedule.min_ratio above 0");
  }
  if (schedule.name != Schedule::Wsd) return;
  if (schedule.decay_steps < 1)
    throw InputError("schedule.decay_steps", "wsd needs at least 1, the length of its decay");
  if (schedule.decay_steps > steps - schedule.warmup_steps) {
    throw InputError("schedule.decay_steps", number(schedule.decay_steps) + " is more than the " +
                                                 counted(steps - schedule.warmup_steps, "step") + " that " + key +
                                                 number(steps) + " leaves after schedule.warmup_steps " +
                                                 number(schedule.warmup_steps));
  }
}

void check_optimizer(const OptimizerOptions& optimizer) {
  if (!optimizer.muon.adamw_learning_rate || optimizer.learning_rate > 0) return;
  throw InputError("optimizer.muon.adamw_learning_rate",
                   "follows the schedule of optimizer.learning_rate, which is 0: use a peak "
                   "above 0, or leave adamw_learning_rate out");
}

void check_balancing(const Recipe& recipe, const MeshLayout& layout) {
  if (!recipe.train.experts) return;
  if (!recipe.model.shape.experts) {
    throw InputError("train.experts",
                     "balances the experts of a model, but a " + recipe.model.shape.family + " has none: leave it out");
  }
  if (recipe.train.experts->bias_update > 0 && !family_of(recipe.model.shape).experts.has_selection_bias) {
    throw InputError("train.experts.bias_update",
                     "changes the bias by which experts are chosen, but the routers of a " + recipe.model.shape.family +
                         " have none: leave it out, or balance by a loss");
  }
  if (recipe.train.experts->bias_update > 0 && recipe.model.shape.adapter) {
    throw InputError("train.experts.bias_update",
                     "changes the base of the adapters, which is not saved with them: leave it out");
  }
  if (recipe.train.experts->scope != BalanceScope::AllLayers || layout.size(kPipelineAxis) == 1) return;
  throw InputError("train.experts.balance", "transformers joins the layers of all stages, but a stage of pp=" +
                                                number(layout.size(kPipelineAxis)) +
                                                " knows its own: use micro_batch or sequence, or pp=1");
}

void check_id(const std::string& key, std::optional<int64_t> id, const std::string& dtype) {
  if (dtype == "megatron") return;
  const int64_t largest = dtype == "uint8" ? 0xff : dtype == "uint16" ? 0xffff : 0xffffffff;
  if (!id || *id <= largest) return;
  throw InputError(key,
                   number(*id) + " does not fit into a file of " + dtype + ", whose ids end at " + number(largest));
}

/// Checks the keys of a source. `key`: the map that holds them.
void check_source(const std::string& key, const SourceOptions& source, int64_t vocab_size) {
  check_id(key + ".ignore_id", source.ignore_id, source.dtype);
  check_id(key + ".documents", source.documents, source.dtype);
  if (source.documents == kDocumentsOfIndex && source.dtype != "megatron") {
    throw InputError(key + ".documents", "index needs a Megatron file, but " + Key{key + ".dtype"} + " is " +
                                             source.dtype +
                                             ": name the id that ends a document, or use dtype megatron");
  }
  if (source.documents && *source.documents >= vocab_size) {
    throw InputError(key + ".documents", number(*source.documents) + " is not a token of the model, whose ids end at " +
                                             number(vocab_size - 1) +
                                             ": name the id that ends a document, or use a model.vocab_size above it");
  }
  if (!source.boundaries_count && !source.documents) {
    throw InputError(key + ".boundary_labels", "ignored needs " + Key{key + ".documents"} +
                                                   ", the id of the token that ends a document: name it, or leave " +
                                                   Key{key + ".boundary_labels"} + " out");
  }
}

void check_data(const Recipe& recipe) {
  const int64_t vocab_size = recipe.model.shape.vocab_size;
  const std::vector<MixedSource> sources = recipe.data.sources();
  for (size_t i = 0; i < sources.size(); ++i) check_source(recipe.data.source_key(i), sources[i], vocab_size);
  if (!recipe.evaluate.tokens.empty()) check_source("evaluate", recipe.evaluate, vocab_size);
}

void check_profile(const TrainRecipe& train, int64_t num_ranks) {
  const ProfileOptions& profile = train.profile;
  if (profile.from == 0) return;
  if (profile.from > train.steps || profile.steps > train.steps - profile.from + 1) {
    throw InputError("train.profile", counted(profile.steps, "step") + " from step " + number(profile.from) +
                                          " on would end after train.steps, " + number(train.steps) +
                                          ": begin earlier, or trace fewer");
  }
  for (const int64_t rank : profile.ranks) {
    if (rank < num_ranks) continue;
    throw InputError("train.profile.ranks",
                     "rank " + number(rank) + " does not exist: this mesh has ranks 0 to " + number(num_ranks - 1));
  }
}

}  // namespace

bool has_documents(const Recipe& recipe) {
  const std::vector<MixedSource> sources = recipe.data.sources();
  return recipe.evaluate.documents ||
         std::ranges::any_of(sources, [](const SourceOptions& source) { return source.documents.has_value(); });
}

void check_values(const Recipe& recipe, const MeshLayout& layout) {
  check_precision(recipe);
  check_tensor_parallel(recipe.model.shape, layout.size(kTensorAxis));
  check_expert_parallel(recipe.model.shape, layout.ep());
  check_positions(recipe);
  check_batch(recipe.train, layout.size(kDataAxis));
  check_schedule(recipe.schedule, recipe.train.steps);
  check_optimizer(recipe.optimizer);
  check_balancing(recipe, layout);
  check_data(recipe);
  check_profile(recipe.train, layout.size());
}

void check_choices(const Recipe& recipe, const Decisions& decisions) {
  check_device(decisions.device);
  check_sharding(recipe, decisions.sharding);
  check_pipeline(recipe, decisions);
  check_sequence(recipe, decisions);
}

void check_expert_parallel(const ModelShape& shape, int64_t ep) {
  if (ep == 1) return;
  if (!shape.experts) {
    throw InputError("parallel.mesh", "ep=" + number(ep) + " cuts experts, but a " + shape.family +
                                          " has none: leave ep out, or use a family with experts (docs/models.md)");
  }
  if (shape.experts.num_experts % ep == 0) return;
  throw InputError("model.num_experts", number(shape.experts.num_experts) + " is not a multiple of ep=" + number(ep) +
                                            ": use a divisor for ep in parallel.mesh");
}

void check_tensor_parallel(const ModelShape& shape, int64_t tp) {
  check_shared("num_attention_heads", shape.num_attention_heads, tp);
  check_shared("num_key_value_heads", shape.num_key_value_heads, tp);
  if (has_dense_layers(shape)) check_shared("intermediate_size", shape.intermediate_size, tp);
  check_shared("shared_expert_intermediate_size", shape.experts.shared_expert_intermediate_size, tp);
}

}  // namespace meshtrain
