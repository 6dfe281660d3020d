#include "tests/matrix/cell.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <random>

#include "runtime/program/verify/comparison.h"
#include "runtime/training/model/families.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kVocabulary = 97;  // no number of ranks divides it
constexpr int64_t kSequence = 32;
constexpr int64_t kGlobalBatch = 16;
constexpr int64_t kCellSteps = 3;
constexpr int64_t kSeparator = 0;

std::string sizes_of(const Cell& cell) {
  return (cell.pp > 1 ? "pp=" + std::to_string(cell.pp) + "," : "") + "dp=" + std::to_string(cell.dp) +
         ",tp=" + std::to_string(cell.tp) + ",cp=" + std::to_string(cell.cp);
}

/// The pairs of values of two factors that a cell covers, by number.
class Pairs {
 public:
  explicit Pairs(const Factors& factors_of) : factors_of_(factors_of) {}

  std::vector<size_t> operator()(const Cell& cell) {
    const std::vector<std::string> factors = factors_of_(cell);
    std::vector<size_t> pairs;
    for (size_t a = 0; a < factors.size(); ++a) {
      for (size_t b = a + 1; b < factors.size(); ++b) {
        pairs.push_back(numbers_.try_emplace({a, factors[a], b, factors[b]}, numbers_.size()).first->second);
      }
    }
    return pairs;
  }

  size_t size() const { return numbers_.size(); }

 private:
  const Factors& factors_of_;
  std::map<std::tuple<size_t, std::string, size_t, std::string>, size_t> numbers_;
};

const std::vector<std::vector<std::string>> kFamilyThirds = {{"llama", "mistral", "granite", "smollm3"},
                                                             {"qwen2", "phi3", "gemma2"},
                                                             {"qwen3", "olmo2", "olmo3", "gemma3_text"}};
const std::vector<std::string> kMixtures = {"mixtral",          "qwen2_moe", "qwen3_moe", "olmoe",  "granitemoe",
                                            "granitemoeshared", "dots1",     "glm4_moe",  "gpt_oss"};
const std::vector<std::string> kAlgorithms = {"ring", "all_gather", "ulysses"};
const std::vector<std::string> kLayouts = {"contiguous", "zigzag"};
const std::vector<std::string> kIgnored = {"none", "uneven"};
const std::vector<std::string> kDocuments = {"one", "packed", "ignored"};
const std::vector<std::string> kPrecisions = {"fp64", "fp32"};
const std::vector<std::string> kFp64 = {"fp64"}, kFp32 = {"fp32"};
const std::vector<std::string> kHalves = {"bf16", "bf16+", "bf16_mixed", "bf16_mixed+", "fp16_mixed"};
const std::vector<std::string> kShardings = {"no_shard",   "shard_optimizer", "shard_grad_op", "shard_grad_op+",
                                             "full_shard", "full_shard+",     "hybrid_shard",  "hybrid_shard+"};
const std::vector<std::string> kRecompute = {"none", "full", "selective", "alternate"};
const std::vector<std::string> kOptimizers = {"adamw", "adamw-unclipped", "sgd", "muon"};
const std::vector<std::string> kFrozen = {"none", "none", "bottom", "top", "parts"};
const std::vector<bool> kGroups = {false, true};
const std::vector<std::string> kAdapters = {"none", "none", "all", "layers", "qv", "ends"};
const std::vector<std::string> kUnits = {"block", "sublayer"};

/// Random values of the factors that are not in a product.
class Draw {
 public:
  template <class T>
  T operator()(const std::vector<T>& values) {
    return values[generator_() % values.size()];
  }

 private:
  std::mt19937_64 generator_{4};
};

Variant draw_variant(Draw& draw, bool tied, const std::vector<std::string>& precisions) {
  return {draw(draw(kFamilyThirds)),
          tied,
          draw(std::vector<std::string>{"mha", "gqa"}),
          draw(kIgnored),
          draw(kDocuments),
          draw(precisions),
          draw(kOptimizers),
          draw(kFrozen),
          draw(kGroups),
          draw(kAdapters)};
}

std::vector<std::array<int64_t, 3>> meshes(int64_t num_ranks) {
  std::vector<std::array<int64_t, 3>> all;
  for (int64_t dp = 1; dp <= num_ranks; ++dp) {
    for (int64_t tp = 1; dp * tp <= num_ranks; ++tp) {
      if (num_ranks % (dp * tp) == 0) all.push_back({dp, tp, num_ranks / (dp * tp)});
    }
  }
  return all;
}

std::vector<bool> sequence_parallel_of(int64_t tp) {
  return tp > 1 ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

void add_model_cells(int64_t dp, int64_t tp, int64_t cp, Draw& draw, std::vector<Cell>& cells) {
  const std::vector<std::string> layouts = cp > 1 ? kLayouts : std::vector<std::string>{"contiguous"};
  for (const std::vector<std::string>& families : kFamilyThirds)
    for (bool tied : {false, true})
      for (const char* heads : {"mha", "gqa"})
        for (const std::string& ignored : kIgnored)
          for (const std::string& precision : kPrecisions)
            for (const std::string& layout : layouts)
              for (bool sequence_parallel : sequence_parallel_of(tp))
                for (int64_t accumulation : {1, 2}) {
                  const Variant variant{
                      draw(families),    tied,          heads,         ignored,        draw(kDocuments), precision,
                      draw(kOptimizers), draw(kFrozen), draw(kGroups), draw(kAdapters)};
                  const std::string algorithm = cp > 1 ? draw(kAlgorithms) : "none";
                  const std::string sharding = dp * cp > 1 ? draw(kShardings) : "no_shard";
                  const std::string recompute = draw(kRecompute);
                  cells.push_back({variant, dp, tp, cp, algorithm, layout, sequence_parallel, accumulation, sharding,
                                   recompute, draw(kUnits)});
                }
}

void add_sharding_cells(int64_t dp, int64_t tp, int64_t cp, Draw& draw, std::vector<Cell>& cells) {
  for (const std::string& sharding : kShardings)
    for (int64_t accumulation : {1, 2})
      for (bool tied : {false, true})
        for (const std::vector<std::string>& precisions : {kFp64, kFp32, kHalves, kHalves}) {
          const Variant variant = draw_variant(draw, tied, precisions);
          const std::string algorithm = cp > 1 ? draw(kAlgorithms) : "none";
          const std::string layout = cp > 1 ? draw(kLayouts) : "contiguous";
          const bool sequence_parallel = tp > 1 && draw(std::vector<int>{0, 1}) == 1;
          const std::string recompute = draw(kRecompute);
          cells.push_back({variant, dp, tp, cp, algorithm, layout, sequence_parallel, accumulation, sharding, recompute,
                           draw(kUnits)});
        }
}

void add_context_cells(int64_t dp, int64_t tp, int64_t cp, Draw& draw, std::vector<Cell>& cells) {
  const std::vector<std::string> packed = {"packed", "ignored"};
  for (const std::string& algorithm : kAlgorithms)
    for (const std::string& layout : kLayouts)
      for (bool documents : {false, true})
        for (bool sequence_parallel : sequence_parallel_of(tp))
          for (const char* heads : {"mha", "few"})
            for (const std::vector<std::string>& precisions : {kFp64, kFp32, kHalves}) {
              const Variant variant{draw(draw(kFamilyThirds)),
                                    draw(std::vector<int>{0, 1}) == 1,
                                    heads,
                                    draw(kIgnored),
                                    documents ? draw(packed) : kDocuments[0],
                                    draw(precisions),
                                    draw(kOptimizers),
                                    draw(kFrozen),
                                    draw(kGroups),
                                    draw(kAdapters)};
              const int64_t accumulation = draw(std::vector<int64_t>{1, 2});
              const std::string sharding = draw(kShardings), recompute = draw(kRecompute);
              cells.push_back({variant, dp, tp, cp, algorithm, layout, sequence_parallel, accumulation, sharding,
                               recompute, draw(kUnits)});
            }
}

void add_pipeline_cells(int64_t pp, int64_t dp, int64_t tp, int64_t cp, Draw& draw, std::vector<Cell>& cells) {
  std::vector<std::string> shardings = {"no_shard"};
  if (dp * cp > 1) shardings = {"no_shard", "shard_grad_op+", "full_shard", "full_shard+", "hybrid_shard"};
  for (const std::string schedule : {"1f1b", "interleaved", "zb_h1"}) {
    const int64_t stages_per_rank = schedule == "interleaved" ? 2 : 1;
    if (pp * stages_per_rank > 8) continue;
    for (const std::string& sharding : shardings) {
      // zb_h1 needs the gradients of a complete step in memory.
      if (schedule == "zb_h1" && sharding != "no_shard" && !sharding.ends_with("+")) continue;
      for (bool tied : {false, true})
        for (const std::vector<std::string>& precisions : {kFp64, kFp32, kHalves}) {
          Variant variant = draw_variant(draw, tied, precisions);
          variant.layers = pp == 8 ? 8 : pp * stages_per_rank + 1;
          const std::string algorithm = cp > 1 ? draw(kAlgorithms) : "none";
          const std::string layout = cp > 1 ? draw(kLayouts) : "contiguous";
          const bool sequence_parallel = tp > 1 && draw(std::vector<int>{0, 1}) == 1;
          // Interleaved stages need as many micro-batches as ranks, or a multiple; 1F1B can run with fewer.
          const int64_t least = stages_per_rank > 1 ? pp : pp / 2;
          const int64_t accumulation = least * dp < 16 ? least * draw(std::vector<int64_t>{1, 2}) : least;
          const std::string recompute = draw(kRecompute);
          cells.push_back({variant, dp, tp, cp, algorithm, layout, sequence_parallel, accumulation, sharding, recompute,
                           draw(kUnits), pp, schedule});
        }
    }
  }
}

int64_t num_experts_of(const std::string& family) {
  return family == "olmoe" ? 5 : family == "granitemoe" ? 6 : 8;
}

bool is_mixture(const std::string& family) {
  return std::ranges::find(kMixtures, family) != kMixtures.end();
}

/// Gives every third cell in fp64 a family with experts, in turns. In other precisions rounding could choose another
/// expert on a mesh.
void give_experts(std::vector<Cell>& cells) {
  Draw draw;
  size_t number = 0;
  for (Cell& cell : cells) {
    if (cell.variant.precision != "fp64" || number++ % 3 != 0) continue;
    cell.variant.family = kMixtures[number / 3 % kMixtures.size()];
    std::vector<int64_t> fitting;
    for (int64_t ep = 1; ep <= num_experts_of(cell.variant.family); ++ep) {
      const bool divides = cell.dp * cell.tp * cell.cp % ep == 0 && num_experts_of(cell.variant.family) % ep == 0;
      if (divides) fitting.push_back(ep);
    }
    cell.ep = draw(fitting);
    cell.variant.balance = draw(std::vector<std::string>{"sequence", "none"});
  }
}

/// Returns true at the ends of documents; kinds of samples alternate in a file. A rank holds 32 / cp positions, in
/// chunks of 16 to 2.
bool ends_document(int64_t sample, int64_t position, bool chance) {
  switch (sample % 8) {
    case 0:
      return false;  // one document
    case 1:
      return true;  // documents of one token
    case 2:
      return position % 2 == 1;  // documents of one zig-zag chunk with cp=8
    case 3:
      return position % 4 == 3;  // documents of one zig-zag chunk with cp=4, one contiguous chunk with cp=8
    case 4:
      return position % 8 == 7;  // documents of one zig-zag chunk with cp=2, one contiguous chunk with cp=4
    case 5:
      return position % 4 == 0;  // documents across every chunk border
    case 6:
      return position == 4;  // a document longer than the part of any rank, except for cp=1
    default:
      return chance;
  }
}

FsdpRecipe fsdp_of(const Cell& cell) {
  const bool other = cell.sharding.ends_with("+");
  FsdpRecipe fsdp;
  fsdp.mode = cell.sharding.substr(0, cell.sharding.size() - other);
  if (fsdp.mode == "hybrid_shard") fsdp.shard_size = cell.dp * cell.cp / 2;
  if (other) fsdp.shard_axes = {"dp"};
  if (other && fsdp.mode == "hybrid_shard") fsdp.shard_size = cell.dp % 2 == 0 ? 2 : 1;
  fsdp.options.reshard_after_forward = !other;
  fsdp.options.accumulate_unsharded = other;
  fsdp.unit = cell.unit;
  fsdp.unit_layers = other && cell.unit == "block" ? 2 : 1;
  return fsdp;
}

std::vector<std::string> patterns_of(const std::string& frozen, int64_t layers) {
  const std::string last = std::to_string(layers - 1);
  if (frozen == "bottom") return {"model.embed_tokens.*", "model.layers.0.*"};
  if (frozen == "top") return {"model.layers." + last + ".*", "model.norm.weight", "lm_head.weight"};
  if (frozen == "parts") return {"*.k_proj.*", "*.gate_proj.*", "*.1.input_layernorm.*", "*.0.mlp.down_proj.*"};
  return {};
}

AdapterShape adapter_for(const std::string& kind, const std::string& frozen) {
  if (kind == "none") return {};
  AdapterShape adapter{.rank = 4, .alpha = 6, .targets = {"all-linear"}, .draws_all = true};
  if (kind == "all") adapter.dropout = 0.1, adapter.use_rslora = true, adapter.train = {"*norm*"};
  if (kind == "layers") adapter.layers = {frozen == "bottom" ? 1 : 0}, adapter.init = AdapterShape::Init::Gaussian;
  if (kind == "ends") adapter.targets = {"embed_tokens", "lm_head", "o_proj"}, adapter.dropout = 0.1;
  if (kind == "qv") adapter.targets = {"q_proj", "v_proj"}, adapter.dropout = 0.1;
  return adapter;
}

template <class T>
std::vector<T> alternating(const T& even, const T& odd, int64_t count) {
  std::vector<T> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(i % 2 == 0 ? even : odd);
  return all;
}

/// Sets the experts of a family that has some: more than one for a token, and layers with and without them.
void choose_experts(ModelShape& shape) {
  const FamilyExperts& family = family_of(shape).experts;
  ExpertsShape& experts = shape.experts;
  experts.num_experts = num_experts_of(shape.family);
  experts.num_experts_per_tok = 2;
  experts.norm_topk_prob = family.normalises || shape.family == "qwen3_moe";
  if (family.chooses_first_dense) experts.mlp_only_layers = {0};
  if (shape.family == "dots1") {
    experts.n_group = 4;
    experts.topk_group = 2;
    experts.routed_scaling_factor = 2.5;
  }
  if (family.chooses_size) experts.moe_intermediate_size = 24;
  if (!family.shared_key.empty()) experts.shared_expert_intermediate_size = family.counts_shared ? 48 : 40;
  if (shape.family == "qwen3_moe") experts.mlp_only_layers = {1};
}

/// Sets what models of the family choose besides sizes, so that each of its pieces matters.
void choose_pieces(ModelShape& shape) {
  const std::string& family = shape.family;
  const bool is_gemma = family.starts_with("gemma");
  shape.qkv_bias = family.starts_with("qwen2");
  if (family == "mistral") shape.sliding_window = 11;
  if (family == "smollm3") shape.no_rope_layers = alternating<int64_t>(1, 0, shape.num_hidden_layers);
  if (family == "dots1") shape.sliding_window = 7;
  if (family == "glm4_moe") {
    shape.partial_rotary_factor = 0.5;
    shape.use_qk_norm = true;
    shape.qkv_bias = true;
  }
  if (family == "gpt_oss") {
    shape.sliding_window = 9;
    shape.layer_types = alternating<std::string>("sliding_attention", "full_attention", shape.num_hidden_layers);
    shape.qkv_bias = shape.output_bias = true;
    shape.experts.swiglu_limit = 0.5;
  }
  if (is_mixture(family)) choose_experts(shape);
  if (family.starts_with("granite")) {
    shape.embedding_multiplier = 3;
    shape.attention_multiplier = 0.3;
    shape.residual_multiplier = 0.4;
    shape.logits_scaling = 1.5;
  }
  if (family == "phi3") {
    shape.partial_rotary_factor = 0.75;
    shape.max_position_embeddings = 64;
    RopeScaling& scaling = shape.rope_scaling.emplace();
    scaling.type = "longrope";
    scaling.original_max_position_embeddings = kSequence / 2;
    scaling.short_factor = {1, 1.25, 1.5};
    scaling.long_factor = {1.5, 2.5, 6};
  }
  if (is_gemma || family == "olmo3") {
    shape.sliding_window = 9;
    shape.layer_types = alternating<std::string>("sliding_attention", "full_attention", shape.num_hidden_layers);
  }
  if (is_gemma) shape.query_pre_attn_scalar = 10;
  if (family == "olmo3") {
    shape.rope_local_base_freq = 100;
    RopeScaling& scaling = shape.rope_scaling.emplace();
    scaling.type = "yarn";
    scaling.factor = 4;
    scaling.original_max_position_embeddings = kSequence / 2;
    scaling.beta_fast = 2;
    scaling.beta_slow = 0.25;
  }
  if (family == "gemma2") {
    shape.attn_logit_softcapping = 2;
    shape.final_logit_softcapping = 3;
  }
  if (family == "gemma3_text") shape.rope_local_base_freq = 100;
}

}  // namespace

std::vector<std::string> factors_of(const Cell& cell) {
  return {sizes_of(cell),
          cell.algorithm,
          cell.layout,
          cell.sequence_parallel ? "sp" : "-",
          "acc=" + std::to_string(cell.accumulation),
          cell.sharding,
          cell.recompute,
          cell.unit == "sublayer" ? "sublayers" : "-",
          is_mixture(cell.variant.family) ? "experts" : cell.variant.family,
          cell.variant.tied ? "tied" : "-",
          cell.variant.heads,
          cell.variant.ignored,
          cell.variant.documents,
          cell.variant.precision,
          cell.variant.optimizer,
          cell.variant.frozen == "none" ? "-" : "frozen-" + cell.variant.frozen,
          cell.variant.groups ? "groups" : "-",
          cell.variant.adapter == "none" ? "-" : "adapters-" + cell.variant.adapter,
          cell.variant.balance == "none" ? "-" : "balance-" + cell.variant.balance,
          cell.schedule == "1f1b" ? "-" : cell.schedule,
          cell.ep == 1 ? "-" : "ep=" + std::to_string(cell.ep)};
}

std::vector<std::string> pipeline_factors_of(const Cell& cell) {
  return {sizes_of(cell), cell.schedule, cell.sharding, cell.variant.tied ? "tied" : "-", cell.variant.precision};
}

std::string Cell::describe() const {
  std::string text;
  for (std::string factor : factors_of(*this)) {
    if (factor == "experts") factor = variant.family;
    if (factor != "-") text += (text.empty() ? "" : " ") + factor;
  }
  return text;
}

std::vector<Cell> all_cells(int64_t num_ranks) {
  Draw draw;
  std::vector<Cell> cells;
  for (const auto& [dp, tp, cp] : meshes(num_ranks)) {
    add_model_cells(dp, tp, cp, draw, cells);
    if (dp * cp > 1) add_sharding_cells(dp, tp, cp, draw, cells);
    if (cp > 1 && tp <= 2 && dp <= 2) add_context_cells(dp, tp, cp, draw, cells);
  }
  give_experts(cells);
  return cells;
}

std::vector<Cell> pipeline_cells(int64_t num_ranks) {
  Draw draw;
  std::vector<Cell> cells;
  for (int64_t pp = 2; pp <= num_ranks; pp *= 2) {
    if (num_ranks % pp != 0) continue;
    for (const auto& [dp, tp, cp] : meshes(num_ranks / pp)) add_pipeline_cells(pp, dp, tp, cp, draw, cells);
  }
  give_experts(cells);
  return cells;
}

std::vector<Cell> pairwise_cover(std::vector<Cell> candidates, uint64_t seed, const Factors& factors_of) {
  std::shuffle(candidates.begin(), candidates.end(), std::mt19937_64(seed));
  Pairs pairs(factors_of);
  std::vector<std::vector<size_t>> pairs_of;
  for (const Cell& cell : candidates) pairs_of.push_back(pairs(cell));

  std::vector<bool> missing(pairs.size(), true);
  const auto gain = [&](const std::vector<size_t>& covered) {
    return std::count_if(covered.begin(), covered.end(), [&](size_t pair) { return missing[pair]; });
  };
  std::vector<Cell> cover;
  for (;;) {
    std::vector<int64_t> gains;
    std::transform(pairs_of.begin(), pairs_of.end(), std::back_inserter(gains), gain);
    const auto best = std::max_element(gains.begin(), gains.end()) - gains.begin();
    if (gains.empty() || gains[best] == 0) return cover;
    for (const size_t pair : pairs_of[best]) missing[pair] = false;
    cover.push_back(candidates[best]);
  }
}

Recipe recipe_of(const Cell& cell, bool alone, const std::filesystem::path& folder) {
  Recipe recipe;
  recipe.name = "cell";
  ModelShape& shape = recipe.model.shape;
  shape.family = cell.variant.family;
  shape.hidden_size = 64;
  shape.intermediate_size = 80;
  shape.num_hidden_layers = cell.variant.layers;
  shape.num_attention_heads = cell.variant.heads == "mha" ? 8 : 16;
  shape.num_key_value_heads = cell.variant.heads == "few" ? 2 : 8;  // one or more for each of 2 or 8 tp ranks
  shape.head_dim = 8;
  shape.vocab_size = kVocabulary;
  shape.initializer_range = 0.1;
  shape.tie_word_embeddings = cell.variant.tied;
  choose_pieces(shape);
  shape.adapter = adapter_for(cell.variant.adapter, cell.variant.frozen);
  // Beyond the original length longrope depends on each document's.
  if (shape.family == "phi3" && cell.variant.documents != "one") {
    shape.rope_scaling->original_max_position_embeddings = kSequence;
  }

  const int64_t dp = alone ? 1 : cell.dp;
  if (!alone) {
    recipe.parallel.mesh = {{"pp", cell.pp}, {"dp", cell.dp}, {"tp", cell.tp}, {"cp", cell.cp}, {"ep", cell.ep}};
  }
  if (!alone && cell.pp > 1) recipe.parallel.pipeline = {cell.schedule, cell.schedule == "interleaved" ? 2 : 1, {}};
  recipe.parallel.sequence_parallel = cell.sequence_parallel && !alone ? "on" : "off";
  if (!alone && cell.cp > 1) recipe.parallel.context = {cell.algorithm, cell.layout};
  if (!alone) recipe.parallel.fsdp = fsdp_of(cell);

  recipe.data.tokens = folder / "tokens.bin";
  if (cell.variant.ignored == "uneven") recipe.data.loss_mask = folder / "mask.bin";
  if (cell.variant.ignored == "uneven") recipe.train.z_loss = 0.01;

  if (cell.variant.documents != "one") recipe.data.documents = kSeparator;
  if (cell.variant.documents == "ignored") recipe.data.boundaries_count = false;

  recipe.train.sequence_length = kSequence;
  recipe.train.global_batch = kGlobalBatch;
  const int64_t alone_at_once = cell.variant.micro_batch > 0 ? cell.variant.micro_batch : kGlobalBatch;
  recipe.train.micro_batch = alone ? alone_at_once : kGlobalBatch / (dp * cell.accumulation);
  if (cell.variant.balance != "none") {
    recipe.train.experts = BalancingOptions{value_of(balance_words(), cell.variant.balance), 0.5, 0.02};
  }
  recipe.train.steps = kCellSteps;
  const std::string& precision = cell.variant.precision;
  const bool wide = precision.ends_with("+");
  recipe.train.precision = precision.substr(0, precision.size() - wide);
  if (wide) recipe.train.residual_dtype = recipe.parallel.fsdp.reduce_dtype = "fp32";
  if (!alone) {
    const bool alternate = cell.recompute == "alternate";
    CheckpointingRecipe& checkpointing = recipe.train.activation_checkpointing;
    checkpointing.mode = alternate ? "full" : cell.recompute;
    if (alternate && cell.pp == 1) checkpointing.every = 2;
    if (alternate && cell.pp > 1) checkpointing.first = 1;  // of each stage
  }
  recipe.train.freeze = patterns_of(cell.variant.frozen, cell.variant.layers);
  recipe.train.clip_norm = cell.variant.optimizer == "adamw-unclipped" ? 0 : 0.5;

  const bool is_adamw = cell.variant.optimizer.starts_with("adamw");
  recipe.optimizer.name = is_adamw ? "adamw" : cell.variant.optimizer;
  if (cell.variant.optimizer == "muon") recipe.optimizer.momentum = 0.95;
  if (cell.variant.groups) recipe.optimizer.groups = {{"*norm.weight", 3, 0}, {"*.layers.1.*", 0.5, 0.3}};
  recipe.optimizer.learning_rate = cell.variant.optimizer == "sgd" ? 0.1 : 1e-3;
  recipe.optimizer.eps = least_eps(cell.variant.precision);
  recipe.optimizer.weight_decay = 0.1;
  recipe.optimizer.decay = cell.variant.tied ? DecayScope::All : DecayScope::Matrices;
  return recipe;
}

void write_tokens(const std::filesystem::path& folder) {
  std::mt19937_64 generator(7);
  std::ofstream tokens(folder / "tokens.bin", std::ios::binary), mask(folder / "mask.bin", std::ios::binary);
  for (int64_t sample = 0; sample < kGlobalBatch * kCellSteps; ++sample) {
    for (int64_t position = 0; position <= kSequence; ++position) {
      const bool ends = ends_document(sample, position, generator() % 5 == 0);
      const uint16_t id = ends ? kSeparator : static_cast<uint16_t>(1 + generator() % (kVocabulary - 1));
      tokens.write(reinterpret_cast<const char*>(&id), sizeof id);
      // A quarter of the samples has no counted label, another only in its first quarter: with many ranks some count
      // none.
      const bool counts = sample % 4 == 1 ? false : sample % 4 == 2 ? position <= kSequence / 4 : generator() % 5 != 0;
      mask.put(counts ? 1 : 0);
    }
  }
}

}  // namespace meshtrain::testing
