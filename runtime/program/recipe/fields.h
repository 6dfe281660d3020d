#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mesh/layout.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/program/yaml/rule.h"
#include "runtime/training/model/families.h"
#include "runtime/training/optimizer/optimizer.h"

/// The keys of a recipe, defined once: the member that each key fills, and its valid values. `fields` is called with an
/// archive; see runtime/program/yaml/rule.h.
namespace meshtrain {

class Reader;

/// Returns, for a Rule, why a key of these types of rotary scaling does not belong beside `type`; empty when it does.
std::string other_types_key(const std::string& type, const std::vector<std::string>& types_of_key);
/// Reads the shape from the model's folder; keys beside it must agree with it. Call after `model.hf` and `model.init`
/// are read.
void begin_shape(Reader& reader, ModelRecipe& model);
/// Sets the values that keys of the family have when they are absent, unless the shape came from a folder. Call after
/// the family is read.
void begin_family(const Reader& reader, ModelShape& shape);
/// Derives sizes from other sizes and checks the numbers against each other. Call after all model keys are read.
void finish_model(Reader& reader, ModelRecipe& model);
/// Sets the layout of Megatron files, which are streams. Call after the source's dtype is read.
void begin_layout(const Reader& reader, SourceOptions& source);
/// Makes a path whose last part is the word `bytes`, and that does not exist, that word alone.
void find_tokenizer(std::filesystem::path& tokenizer);
/// The section `adapter`.
struct AdapterSection {
  AdapterShape shape;
  const ModelShape* model = nullptr;  ///< the model with these adapters, when reading
};
/// Reads the adapters' shape from the folder of adapter.from; keys beside it must agree with it. Call after that key is
/// read, and the model.
void begin_adapter(Reader& reader, AdapterSection& adapter);
/// Returns true when the map of `data:` has a mixture.
bool names_mixture(const Reader& reader);
/// Sets the defaults of the held-out samples from the data. Call after the data are read.
void begin_evaluate(const DataOptions& data, EvaluationOptions& evaluate);
/// Sets the balancing of experts that transformers trains the model's folder with. Call after the model is read.
void begin_balancing(const ModelShape& shape, TrainRecipe& train);
/// Checks the phases of a batch that grows, and sets its last size. Call after train.global_batch is read.
void finish_phases(const Reader& reader, TrainRecipe& train);
/// Refuses Megatron's running balancing loss by its name.
void refuse_running_loss(const Reader& reader);
/// Adds the axes that the order leaves out.
void finish_order(Reader& reader, ParallelRecipe& parallel);
void check_name(Reader& reader, const Recipe& recipe);
/// Checks that the patterns match parameters of the model, and that at least one parameter is trained. Call after the
/// complete recipe is read.
void check_patterns(Reader& reader, const Recipe& recipe);

inline constexpr double kMaxSize = 2147483647;

template <class Archive>
void fields(Archive& archive, RopeScaling& scaling) {
  archive.field("rope_type", scaling.type,
                {.required = true, .choices = {"default", "linear", "llama3", "yarn", "longrope", "dynamic"}});
  const std::string& type = scaling.type;
  const std::string unscaled = other_types_key(type, {"linear", "llama3", "yarn", "longrope", "dynamic"});
  const std::string not_llama3 = other_types_key(type, {"llama3"}), not_yarn = other_types_key(type, {"yarn"});
  archive.field("factor", scaling.factor, {.required = type != "longrope", .least = 1, .refused = unscaled});
  archive.field("low_freq_factor", scaling.low_freq_factor, {.required = true, .above = 0, .refused = not_llama3});
  archive.field("high_freq_factor", scaling.high_freq_factor, {.required = true, .above = 0, .refused = not_llama3});
  const bool needs_original = type == "llama3" || type == "longrope";
  archive.field("original_max_position_embeddings", scaling.original_max_position_embeddings,
                {.required = needs_original,
                 .least = needs_original ? 1 : 0,
                 .most = kMaxSize,
                 .refused = other_types_key(type, {"llama3", "yarn", "longrope"})});
  archive.field("beta_fast", scaling.beta_fast, {.above = 0, .refused = not_yarn});
  archive.field("beta_slow", scaling.beta_slow, {.above = 0, .refused = not_yarn});
  archive.field("attention_factor", scaling.attention_factor,
                {.above = 0, .refused = other_types_key(type, {"yarn", "longrope"})});
  archive.field("mscale", scaling.mscale, {.above = 0, .refused = not_yarn});
  archive.field("mscale_all_dim", scaling.mscale_all_dim, {.above = 0, .refused = not_yarn});
  archive.field("truncate", scaling.truncate, {.refused = not_yarn});
  const std::string not_long = other_types_key(type, {"longrope"});
  archive.field("short_factor", scaling.short_factor, {.required = true, .above = 0, .refused = not_long});
  archive.field("long_factor", scaling.long_factor, {.required = true, .above = 0, .refused = not_long});
}

/// Visits the keys of a model's experts.
template <class Archive>
void expert_fields(Archive& archive, ModelShape& shape) {
  const FamilyExperts& family = family_of(shape).experts;
  ExpertsShape& experts = shape.experts;
  const auto size_if = [&](bool chooses) {
    return Rule{.required = true,
                .least = 1,
                .most = kMaxSize,
                .refused = chooses ? "" : "is not a key of family " + shape.family};
  };
  archive.field("num_experts", experts.num_experts, size_if(static_cast<bool>(family)));
  archive.field("num_experts_per_tok", experts.num_experts_per_tok, size_if(static_cast<bool>(family)));
  archive.field("moe_intermediate_size", experts.moe_intermediate_size, size_if(family.chooses_size));
  Rule shared = size_if(!family.shared_key.empty());
  if (!family.needs_shared) shared.required = false, shared.least = 0;
  archive.field("shared_expert_intermediate_size", experts.shared_expert_intermediate_size, shared);
  archive.field("norm_topk_prob", experts.norm_topk_prob, {.refused = size_if(family.chooses_normalisation).refused});
  archive.field("mlp_only_layers", experts.mlp_only_layers,
                {.least = 0,
                 .most = kMaxSize,
                 .refused = size_if(family.chooses_dense_layers || family.chooses_first_dense).refused});
  const std::string no_groups = size_if(family.chooses_groups).refused;
  archive.field("n_group", experts.n_group, {.least = 1, .most = kMaxSize, .refused = no_groups});
  archive.field("topk_group", experts.topk_group, {.least = 1, .most = kMaxSize, .refused = no_groups});
  archive.field("routed_scaling_factor", experts.routed_scaling_factor, {.above = 0, .refused = no_groups});
  const Rule clamp = {.above = 0, .refused = size_if(family.clamps).refused};
  archive.field("swiglu_alpha", experts.swiglu_alpha, clamp);
  archive.field("swiglu_limit", experts.swiglu_limit, clamp);
}

template <class Archive>
void fields(Archive& archive, ModelShape& shape) {
  const Rule size = {.required = true, .least = 1, .most = kMaxSize};
  const Rule derived_size = {.least = 1, .most = kMaxSize};
  archive.field("family", shape.family, {.choices = family_names()});
  archive.when_reading([&](Reader& reader) { begin_family(reader, shape); });
  const Family& family = family_of(shape);
  const auto only_if = [&](bool chooses) { return chooses ? std::string() : "is not a key of family " + family.name; };
  archive.field("hidden_size", shape.hidden_size, size);
  archive.field("intermediate_size", shape.intermediate_size, size);
  archive.field("num_hidden_layers", shape.num_hidden_layers, size);
  archive.field("num_attention_heads", shape.num_attention_heads, size);
  archive.field("num_key_value_heads", shape.num_key_value_heads, derived_size);
  archive.field("head_dim", shape.head_dim, derived_size);
  archive.field("vocab_size", shape.vocab_size, size);
  archive.field("max_position_embeddings", shape.max_position_embeddings, {.least = 0, .most = kMaxSize});
  archive.field("rope_theta", shape.rope_theta, {.above = 0});
  archive.section("rope_scaling", shape.rope_scaling, "rope_type");
  archive.field("rope_local_base_freq", shape.rope_local_base_freq,
                {.above = 0, .refused = only_if(family.chooses_local_theta)});
  archive.field("partial_rotary_factor", shape.partial_rotary_factor,
                {.above = 0, .most = 1, .refused = only_if(family.chooses_rotary_part)});
  archive.field("no_rope_layers", shape.no_rope_layers,
                {.least = 0, .most = 1, .refused = only_if(family.chooses_rotary_layers)});
  archive.field("sliding_window", shape.sliding_window,
                {.least = 0, .most = kMaxSize, .refused = only_if(family.chooses_window)});
  archive.field("layer_types", shape.layer_types,
                {.choices = {"full_attention", "sliding_attention"}, .refused = only_if(family.chooses_layer_types)});
  expert_fields(archive, shape);
  archive.field("rms_norm_eps", shape.rms_norm_eps, {.above = 0});
  archive.field("initializer_range", shape.initializer_range, {.above = 0});
  archive.field("tie_word_embeddings", shape.tie_word_embeddings);
  archive.field("pad_token_id", shape.pad_token_id, {.least = 0, .most = kMaxSize});
  bool attention_bias = family.qkv_bias ? shape.output_bias : shape.qkv_bias;  // those of Qwen2 come with the family
  archive.field("attention_bias", attention_bias);
  archive.field("mlp_bias", shape.mlp_bias);
  archive.field("use_qk_norm", shape.use_qk_norm, {.refused = only_if(family.chooses_qk_norm)});
  const Rule multiplier = {.above = 0, .refused = only_if(family.chooses_multipliers)};
  archive.field("embedding_multiplier", shape.embedding_multiplier, multiplier);
  archive.field("attention_multiplier", shape.attention_multiplier,
                {.least = 0, .refused = only_if(family.chooses_multipliers)});
  archive.field("residual_multiplier", shape.residual_multiplier, multiplier);
  archive.field("logits_scaling", shape.logits_scaling, multiplier);
  archive.field("query_pre_attn_scalar", shape.query_pre_attn_scalar,
                {.least = 0, .most = kMaxSize, .refused = only_if(family.chooses_query_scalar)});
  const Rule cap = {.least = 0, .refused = only_if(family.chooses_softcaps)};
  archive.field("attn_logit_softcapping", shape.attn_logit_softcapping, cap);
  archive.field("final_logit_softcapping", shape.final_logit_softcapping, cap);
  archive.when_reading([&](Reader&) { shape.output_bias = attention_bias; });
}

template <class Archive>
void fields(Archive& archive, ModelRecipe& model) {
  archive.field("hf", model.hf);
  archive.when_reading([&](Reader&) { model.init = model.hf.empty() ? "random" : "pretrained"; });
  archive.field("init", model.init, {.choices = {"pretrained", "random"}});
  archive.field("freeze_padding_row", model.freeze_padding_row);
  archive.when_reading([&](Reader& reader) { begin_shape(reader, model); });
  fields(archive, model.shape);
  archive.when_complete([&](Reader& reader) { finish_model(reader, model); });
}

template <class Archive>
void fields(Archive& archive, AdapterSection& section) {
  AdapterShape& adapter = section.shape;
  std::string kind = "lora";
  archive.field("kind", kind, {.choices = {"lora"}});
  archive.field("from", adapter.from);
  archive.when_reading([&](Reader& reader) { begin_adapter(reader, section); });
  archive.field("rank", adapter.rank, {.required = true, .least = 1, .most = kMaxSize});
  archive.field("alpha", adapter.alpha, {.above = 0});
  archive.field("use_rslora", adapter.use_rslora);
  archive.field("targets", adapter.targets, {.required = true});
  archive.field("layers", adapter.layers, {.least = 0, .most = kMaxSize});
  archive.when_reading([&](auto& reader) { reader.settle(""); });
  archive.field("train", adapter.train);
  archive.field("dropout", adapter.dropout, {.least = 0, .below = 1});
  word_field(archive, "init", adapter.init,
             {{"kaiming", AdapterShape::Init::Kaiming}, {"gaussian", AdapterShape::Init::Gaussian}});
}

template <class Archive>
void fields(Archive& archive, ContextRecipe& context) {
  archive.field("algorithm", context.algorithm, {.choices = {"auto", "ring", "all_gather", "ulysses"}});
  archive.field("layout", context.layout, {.choices = {"auto", "contiguous", "zigzag"}});
}

template <class Archive>
void fields(Archive& archive, PipelineRecipe& pipeline) {
  archive.field("schedule", pipeline.schedule, {.choices = {"auto", "1f1b", "interleaved", "zb_h1"}});
  archive.field("stages_per_rank", pipeline.stages_per_rank, {.least = 1, .most = kMaxSize});
  archive.field("layers", pipeline.layers, {.least = 1, .most = kMaxSize});
}

template <class Archive>
void fields(Archive& archive, OffloadRecipe& offload) {
  archive.field("to", offload.to, {.choices = {"none", "host", "disk"}});
  archive.field("path", offload.path,
                {.required = true, .refused = offload.to == "disk" ? "" : "needs parallel.fsdp.offload.to: disk"});
  archive.field("parameters", offload.parameters,
                {.refused = offload.to == "none" ? "needs parallel.fsdp.offload.to: host or disk" : ""});
}

template <class Archive>
void fields(Archive& archive, FsdpRecipe& fsdp) {
  archive.field("mode", fsdp.mode,
                {.choices = {"auto", "no_shard", "shard_optimizer", "shard_grad_op", "full_shard", "hybrid_shard"}});
  archive.field("shard_size", fsdp.shard_size, {.least = 1, .most = kMaxSize});
  archive.field("shard_axes", fsdp.shard_axes, {.choices = {kDataAxis, kContextAxis}});
  archive.field("reshard_after_forward", fsdp.options.reshard_after_forward);
  archive.field("no_sync", fsdp.options.accumulate_unsharded);
  archive.field("prefetch", fsdp.options.prefetch, {.least = 0, .most = 64});
  archive.field("unit", fsdp.unit, {.choices = {"block", "sublayer"}});
  archive.field("unit_layers", fsdp.unit_layers, {.least = 1, .most = kMaxSize});
  archive.field("reduce_dtype", fsdp.reduce_dtype, {.choices = {"auto", "fp32", "bf16", "fp16"}});
  archive.section("offload", fsdp.offload, "to");
}

template <class Archive>
void fields(Archive& archive, ParallelRecipe& parallel) {
  const std::vector<std::string> axes = {kDataAxis, kTensorAxis, kContextAxis, kPipelineAxis};
  std::vector<std::string> sizes = axes;
  sizes.push_back(kExpertAxis);
  archive.field("mesh", parallel.mesh,
                {.least = 1,
                 .most = kMaxSize,
                 .choices = sizes,
                 .minus_one = "auto",
                 .expected = "a map of axes and sizes, as in {pp: 2, dp: 2, tp: auto}"});
  archive.when_reading([&](Reader&) {
    for (auto& [axis, size] : parallel.mesh) size = size == -1 ? MeshLayout::kAuto : size;
  });
  archive.field("order", parallel.order, {.choices = axes});
  archive.when_reading([&](Reader& reader) { finish_order(reader, parallel); });
  archive.section("fsdp", parallel.fsdp, "mode");
  archive.field("sequence_parallel", parallel.sequence_parallel, {.choices = {"auto", "on", "off"}});
  archive.section("context", parallel.context, "algorithm");
  archive.section("pipeline", parallel.pipeline, "schedule");
  archive.field("backend", parallel.backend, {.choices = {"auto", "mpi", "nccl"}});
  archive.field("stall_warning", parallel.stall_warning, {.above = 0});
  archive.field("timeout", parallel.timeout, {.above = 0});
  archive.field("nccl_user_buffers", parallel.nccl_user_buffers,
                {.choices = {"off", "registered", "symmetric", "true", "false"}});
  archive.when_reading([&](Reader&) {  // older recipes have true and false
    if (parallel.nccl_user_buffers == "true") parallel.nccl_user_buffers = "registered";
    if (parallel.nccl_user_buffers == "false") parallel.nccl_user_buffers = "off";
  });
}

/// Visits the keys of a token file besides its name. `refused`: why none of them may be set; `no_mask`: why a loss mask
/// may not.
template <class Archive>
void source_fields(Archive& archive, SourceOptions& source, const std::string& refused, const std::string& no_mask) {
  archive.field("source", source.source, {.refused = refused});
  archive.field("dtype", source.dtype, {.choices = {"uint8", "uint16", "uint32", "megatron"}, .refused = refused});
  archive.when_reading([&](Reader& reader) { begin_layout(reader, source); });
  word_field(archive, "layout", source.layout, {{"records", SampleLayout::Records}, {"stream", SampleLayout::Stream}},
             {.refused = refused});
  archive.field("ignore_id", source.ignore_id, {.least = 0, .refused = refused});
  archive.field("loss_mask", source.loss_mask, {.refused = no_mask});
  archive.field("shuffle", source.shuffle, {.refused = refused});
  archive.field("documents", source.documents, {.least = 0, .minus_one = "index", .refused = refused});
  word_field(archive, "boundary_labels", source.boundaries_count, {{"counted", true}, {"ignored", false}},
             {.refused = refused});
}

template <class Archive>
void fields(Archive& archive, MixedSource& source) {
  archive.field("tokens", source.tokens, {.required = true});
  archive.field("weight", source.weight, {.required = true, .above = 0});
  source_fields(archive, source, "", "");
}

template <class Archive>
void fields(Archive& archive, DataOptions& data) {
  bool mixed = !data.mixture.empty();
  archive.when_reading([&](Reader& reader) { mixed = names_mixture(reader); });
  const std::string refused =
      mixed ? "describes one file: set it in the entries of data.mixture, or leave data.mixture out" : "";
  archive.field("tokens", data.tokens, {.required = !mixed, .refused = refused});
  source_fields(archive, data, "", refused);
  archive.field("tokenizer", data.tokenizer);
  archive.when_reading([&](Reader&) { find_tokenizer(data.tokenizer); });
  archive.list("mixture", data.mixture, MixedSource{data});
}

template <class Archive>
void fields(Archive& archive, EvaluationOptions& evaluate) {
  archive.field("every", evaluate.every, {.least = 0});
  archive.field("tokens", evaluate.tokens, {.required = evaluate.every > 0});
  const std::string none = evaluate.tokens.empty() ? "needs evaluate.tokens, the file to evaluate on" : "";
  archive.field("samples", evaluate.samples, {.least = 1, .refused = none});
  source_fields(archive, evaluate, none, none);
}

template <class Archive>
void fields(Archive& archive, CheckpointingRecipe& checkpointing) {
  archive.field("mode", checkpointing.mode, {.choices = {"none", "full", "selective"}});
  const std::string none =
      checkpointing.mode == "none" ? "needs train.activation_checkpointing.mode: full or selective" : "";
  archive.field("every", checkpointing.every, {.least = 1, .most = kMaxSize, .refused = none});
  archive.field("first", checkpointing.first, {.least = 1, .most = kMaxSize, .refused = none});
}

template <class Archive>
void fields(Archive& archive, ParameterMetricsRecipe& metrics) {
  archive.field("every", metrics.every, {.least = 0});
}

template <class Archive>
void fields(Archive& archive, ProfileOptions& profile) {
  archive.field("from", profile.from, {.least = 0});
  const std::string refused = profile.from == 0 ? "needs train.profile.from, the first step to trace" : "";
  archive.field("steps", profile.steps, {.least = 1, .refused = refused});
  archive.field("ranks", profile.ranks, {.least = 0, .refused = refused});
}

template <class Archive>
void fields(Archive& archive, LossScaleOptions& scale) {
  archive.field("static", scale.fixed, {.above = 0});
  const std::string fixed = scale.fixed ? "belongs to a dynamic scale: leave it or train.loss_scale.static out" : "";
  archive.field("initial", scale.initial, {.above = 0, .refused = fixed});
  archive.field("growth_interval", scale.growth_interval, {.least = 1, .refused = fixed});
  archive.field("growth_factor", scale.growth_factor, {.least = 1, .refused = fixed});
  archive.field("backoff_factor", scale.backoff_factor, {.above = 0, .below = 1, .refused = fixed});
  archive.field("min", scale.min, {.above = 0, .refused = fixed});
}

template <class Archive>
void fields(Archive& archive, OutlierOptions& outliers) {
  archive.field("window", outliers.window, {.least = 6, .most = kMaxSize});
  archive.field("sigma", outliers.sigma, {.above = 0});
}

template <class Archive>
void fields(Archive& archive, BalancingOptions& experts) {
  archive.when_reading([&](Reader& reader) { refuse_running_loss(reader); });
  word_field(archive, "balance", experts.scope, balance_words());
  const bool none = experts.scope == BalanceScope::None;
  archive.field("coefficient", experts.coefficient,
                {.required = experts.coefficient == 0,
                 .above = 0,
                 .refused = none ? "needs train.experts.balance: sequence, micro_batch or transformers" : ""});
  archive.field("z_loss", experts.z_loss, {.least = 0});
  archive.field("bias_update", experts.bias_update, {.least = 0});
  archive.field("capacity_factor", experts.capacity_factor, {.above = 0});
}

template <class Archive>
void fields(Archive& archive, BatchPhase& phase) {
  archive.field("until", phase.until, {.least = 1});
  archive.field("size", phase.size, {.required = true, .least = 1, .most = kMaxSize});
}

template <class Archive>
void fields(Archive& archive, TrainRecipe& train) {
  const Rule size = {.required = true, .least = 1, .most = kMaxSize};
  archive.field("sequence_length", train.sequence_length, size);
  archive.field_or_list("global_batch", train.global_batch, size, train.phases);
  archive.when_complete([&](Reader& reader) { finish_phases(reader, train); });
  archive.field("micro_batch", train.micro_batch, {.least = 1, .most = kMaxSize});
  archive.field("steps", train.steps, {.required = true, .least = 1});
  archive.field("precision", train.precision, {.choices = {"fp64", "fp32", "bf16", "bf16_mixed", "fp16_mixed"}});
  archive.field("residual_dtype", train.residual_dtype, {.choices = {"auto", "fp32"}});
  archive.section("loss_scale", train.loss_scale, "static");
  archive.when_reading([&](Reader&) {
    if (train.precision == "fp16_mixed" && !train.loss_scale) train.loss_scale.emplace();
  });
  archive.field("stochastic_rounding", train.stochastic_rounding);
  archive.field("non_finite", train.non_finite, {.choices = {"stop", "skip"}});
  archive.field("max_skipped", train.max_skipped, {.least = 1});
  archive.section("skip_outliers", train.skip_outliers, "sigma");
  archive.field("clip_norm", train.clip_norm, {.least = 0});
  archive.field("z_loss", train.z_loss, {.least = 0});
  archive.field("seed", train.seed, {.least = 0});
  archive.field("freeze", train.freeze);
  archive.section("experts", train.experts, "balance");
  archive.section("parameter_metrics", train.parameter_metrics, "every");
  archive.section("profile", train.profile, "from");
  archive.field("tensorboard", train.tensorboard);
  archive.section("activation_checkpointing", train.activation_checkpointing, "mode");
  archive.field("offload_activations", train.offload_activations);
  archive.field("cuda_graph", train.cuda_graph);
  archive.field("cuda_allocator", train.cuda_allocator);
  archive.field("log_every", train.log_every, {.least = 1});
  archive.field("device_flops", train.device_flops, {.least = 0});
  archive.field("time_limit", train.time_limit, {.least = 0});
  archive.field("export", train.export_folder);
}

template <class Archive>
void fields(Archive& archive, GroupOptions& group) {
  archive.field("pattern", group.pattern, {.required = true});
  archive.field("learning_rate_factor", group.learning_rate_factor, {.least = 0});
  archive.field("weight_decay", group.weight_decay, {.least = 0});
}

template <class Archive>
void fields(Archive& archive, OptimizerOptions& optimizer) {
  archive.field("name", optimizer.name, {.choices = optimizer_names()});
  const bool is_muon = optimizer.name == "muon";
  archive.field("learning_rate", optimizer.learning_rate, {.required = true, .least = 0});
  archive.field("betas", optimizer.betas, {.least = 0, .below = 1});
  archive.field("eps", optimizer.eps, {.least = 0});
  archive.field("weight_decay", optimizer.weight_decay, {.least = 0});
  archive.when_reading([&](Reader&) { optimizer.momentum = is_muon ? 0.95 : 0; });
  archive.field("momentum", optimizer.momentum, {.least = 0, .below = 1});
  word_field(archive, "decay", optimizer.decay, {{"all", DecayScope::All}, {"matrices", DecayScope::Matrices}});
  word_field(archive, "state_dtype", optimizer.state_dtype, {{"auto", std::nullopt}, {"fp32", at::kFloat}});
  archive.map("muon", [&](Archive& inner) {
    const std::string refused = is_muon ? "" : "belongs to optimizer.name muon, not " + optimizer.name;
    MuonOptions& muon = optimizer.muon;
    word_field(inner, "scale", muon.scale,
               {{"match_rms_adamw", MuonScale::MatchRmsAdamW},
                {"original", MuonScale::Original},
                {"spectral", MuonScale::Spectral},
                {"unit_rms_norm", MuonScale::UnitRmsNorm}},
               {.refused = refused});
    inner.field("scale_factor", muon.scale_factor, {.above = 0, .refused = refused});
    inner.field("nesterov", muon.nesterov, {.refused = refused});
    word_field(inner, "coefficients", muon.coefficients,
               {{"simple", Coefficients::Simple},
                {"quintic", Coefficients::Quintic},
                {"polar_express", Coefficients::PolarExpress}},
               {.refused = refused});
    inner.field("newton_schulz_steps", muon.newton_schulz_steps, {.least = 1, .most = 100, .refused = refused});
    inner.field("adamw_learning_rate", muon.adamw_learning_rate, {.least = 0, .refused = refused});
  });
  archive.list("groups", optimizer.groups, {});
}

template <class Archive>
void fields(Archive& archive, ScheduleOptions& schedule) {
  word_field(archive, "name", schedule.name, schedule_words());
  archive.field("total_steps", schedule.total_steps, {.least = 1});
  word_field(archive, "warmup_shape", schedule.warmup_shape,
             {{"linear", WarmupShape::Linear}, {"log", WarmupShape::Log}});
  archive.field("warmup_steps", schedule.warmup_steps, {.least = 0});
  archive.field("first_ratio", schedule.first_ratio, {.least = 0, .most = 1});
  archive.field("delay", schedule.delay, {.least = 0});
  archive.field("decay_steps", schedule.decay_steps, {.least = 0});
  archive.field("min_ratio", schedule.min_ratio, {.least = 0, .most = 1});
}

template <class Archive>
void fields(Archive& archive, CheckpointRecipe& checkpoint) {
  archive.field("every", checkpoint.every, {.least = 0});
  archive.field("keep_last", checkpoint.keep_last, {.least = 0});
  const std::string none =
      checkpoint.keep_last == 0 ? "needs checkpoint.keep_last: without it all checkpoints are kept" : "";
  archive.field("keep_every", checkpoint.keep_every, {.least = 0, .refused = none});
}

template <class Archive>
void fields(Archive& archive, Recipe& recipe) {
  archive.field("name", recipe.name);
  archive.when_reading([&](Reader& reader) { check_name(reader, recipe); });
  archive.section("model", recipe.model, "hf");
  ModelShape& shape = recipe.model.shape;
  std::optional<AdapterSection> adapter;
  if (shape.adapter) adapter.emplace(shape.adapter);
  archive.when_reading([&](Reader&) { adapter.emplace(AdapterShape{}, &shape); });
  archive.section("adapter", adapter);
  archive.when_reading(
      [&](auto& reader) { shape.adapter = reader.has("adapter") ? std::move(adapter->shape) : AdapterShape{}; });
  archive.section("parallel", recipe.parallel);
  archive.section("data", recipe.data, "tokens");
  archive.when_reading([&](Reader&) { begin_evaluate(recipe.data, recipe.evaluate); });
  archive.section("evaluate", recipe.evaluate, "tokens");
  archive.when_reading([&](Reader&) { begin_balancing(shape, recipe.train); });
  archive.section("train", recipe.train);
  archive.section("optimizer", recipe.optimizer, "name");
  archive.section("schedule", recipe.schedule, "name");
  archive.section("checkpoint", recipe.checkpoint, "every");
  archive.field("device", recipe.device, {.choices = {"auto", "cpu", "cuda"}});
  archive.when_complete([&](Reader& reader) { check_patterns(reader, recipe); });
}

}  // namespace meshtrain
