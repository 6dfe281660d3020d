#include "runtime/program/published/known_shapes.h"

#include <array>
#include <charconv>
#include <string_view>

namespace meshtrain {
namespace {

struct ShapeRow {
  const char* name;
  int64_t hidden, intermediate, layers, heads, kv_heads, vocabulary;
  const char* family = "llama";
  int64_t head_dim = 0;  // 0: hidden / heads
  bool tied = false;
};

// From the models' config.json, except where a comment names another source.
constexpr std::array kShapes = {
    ShapeRow{"llama-7b", 4096, 11008, 32, 32, 32, 32000},
    // Hagemann et al. (2311.05610) trained LLaMA's shapes with a vocabulary of 128,000; tables of published runs name
    // those of LLaMA itself llama-7b and llama-65b, or llama2-13b, which has the shape of its 13b.
    ShapeRow{"llama-13b", 5120, 13824, 40, 40, 40, 128000},
    ShapeRow{"llama-30b", 6656, 17920, 60, 52, 52, 128000},
    ShapeRow{"llama-33b", 6656, 17920, 60, 52, 52, 32000},
    ShapeRow{"llama-65b", 8192, 22016, 80, 64, 64, 128000},
    ShapeRow{"llama2-7b", 4096, 11008, 32, 32, 32, 32000},
    ShapeRow{"llama2-13b", 5120, 13824, 40, 40, 40, 32000},
    ShapeRow{"llama2-34b", 8192, 22016, 48, 64, 8, 32000},  // Code Llama's
    ShapeRow{"llama2-70b", 8192, 28672, 80, 64, 8, 32000},
    ShapeRow{"llama3-8b", 4096, 14336, 32, 32, 8, 128256},
    ShapeRow{"llama3-70b", 8192, 28672, 80, 64, 8, 128256},
    ShapeRow{"llama3-405b", 16384, 53248, 126, 128, 8, 128256},
    ShapeRow{"llama3.1-8b", 4096, 14336, 32, 32, 8, 128256},
    ShapeRow{"llama3.1-70b", 8192, 28672, 80, 64, 8, 128256},
    ShapeRow{"llama3.1-405b", 16384, 53248, 126, 128, 8, 128256},
    ShapeRow{"llama3.2-1b", 2048, 8192, 16, 32, 8, 128256, "llama", 64, true},
    ShapeRow{"llama3.2-3b", 3072, 8192, 28, 24, 8, 128256, "llama", 128, true},
    ShapeRow{"llama3.3-70b", 8192, 28672, 80, 64, 8, 128256},
    // nanotron's scripts/scaling_benchmarks.py: tied, and 3.57e9 parameters with this vocabulary.
    ShapeRow{"llama-3.57b", 3072, 8192, 28, 32, 32, 131072, "llama", 0, true},
    ShapeRow{"smollm2-1.7b", 2048, 8192, 24, 32, 32, 49152, "llama", 64, true},
    ShapeRow{"tinyllama-1.1b", 2048, 5632, 22, 32, 4, 32000},
    ShapeRow{"mistral-7b", 4096, 14336, 32, 32, 8, 32000},
    ShapeRow{"qwen2.5-0.5b", 896, 4864, 24, 14, 2, 151936, "qwen2", 64, true},
    ShapeRow{"qwen2.5-1.5b", 1536, 8960, 28, 12, 2, 151936, "qwen2", 128, true},
    ShapeRow{"qwen2.5-3b", 2048, 11008, 36, 16, 2, 151936, "qwen2", 128, true},
    ShapeRow{"qwen2.5-7b", 3584, 18944, 28, 28, 4, 152064, "qwen2"},
    ShapeRow{"qwen2.5-14b", 5120, 13824, 48, 40, 8, 152064, "qwen2"},
    ShapeRow{"qwen2.5-32b", 5120, 27648, 64, 40, 8, 152064, "qwen2"},
    ShapeRow{"qwen2.5-72b", 8192, 29568, 80, 64, 8, 152064, "qwen2"},
    ShapeRow{"qwen3-0.6b", 1024, 3072, 28, 16, 8, 151936, "qwen3", 128, true},
    ShapeRow{"qwen3-1.7b", 2048, 6144, 28, 16, 8, 151936, "qwen3", 128, true},
    ShapeRow{"qwen3-4b", 2560, 9728, 36, 32, 8, 151936, "qwen3", 128, true},
    ShapeRow{"qwen3-8b", 4096, 12288, 36, 32, 8, 151936, "qwen3", 128},
    ShapeRow{"qwen3-14b", 5120, 17408, 40, 40, 8, 151936, "qwen3", 128},
    ShapeRow{"qwen3-32b", 5120, 25600, 64, 64, 8, 151936, "qwen3", 128},
};

ModelShape model_shape(const ShapeRow& row) {
  ModelShape shape;
  shape.family = row.family;
  shape.hidden_size = row.hidden;
  shape.intermediate_size = row.intermediate;
  shape.num_hidden_layers = row.layers;
  shape.num_attention_heads = row.heads;
  shape.num_key_value_heads = row.kv_heads;
  shape.head_dim = row.head_dim > 0 ? row.head_dim : row.hidden / row.heads;
  shape.vocab_size = row.vocabulary;
  shape.tie_word_embeddings = row.tied;
  shape.qkv_bias = shape.family == "qwen2";
  return shape;
}

/// Takes "-12-layers" off the end of a name and returns the 12; none where it does not end so.
std::optional<int64_t> take_layers(std::string_view& name) {
  constexpr std::string_view kEnding = "-layers";
  if (!name.ends_with(kEnding)) return std::nullopt;
  const std::string_view rest = name.substr(0, name.size() - kEnding.size());
  const size_t dash = rest.rfind('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const std::string_view digits = rest.substr(dash + 1);
  int64_t layers = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), layers);
  if (error != std::errc() || end != digits.end() || layers < 1 || layers > 10000) return std::nullopt;
  name = rest.substr(0, dash);
  return layers;
}

}  // namespace

std::optional<ModelShape> known_shape(const std::string& name) {
  std::string_view base = name;
  const std::optional<int64_t> layers = take_layers(base);
  for (const ShapeRow& row : kShapes) {
    if (base != row.name) continue;
    ModelShape shape = model_shape(row);
    if (layers) shape.num_hidden_layers = *layers;
    return shape;
  }
  return std::nullopt;
}

std::vector<std::string> known_shapes() {
  std::vector<std::string> names;
  for (const ShapeRow& row : kShapes) names.emplace_back(row.name);
  return names;
}

}  // namespace meshtrain
