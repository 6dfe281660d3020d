// Compares numbers of converted recipes with the formulas of the tools, written here as in the tools' source.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "mesh/device/aten.h"
#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/recipe/load.h"
#include "runtime/training/optimizer/muon.h"
#include "runtime/training/optimizer/schedule.h"
#include "tests/runtime/program/recipe/recipe_folder.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// Returns the converted recipe of `configuration`, with the keys that no configuration has.
Recipe recipe_of(const std::string& name, const std::string& configuration) {
  const RecipeFolder folder;
  const std::string text = recipe_from(folder.write(name, configuration)).text;
  std::vector<std::string> overrides = {"data.tokens=tokens.bin", "train.sequence_length=32", "train.global_batch=8",
                                        "parallel.mesh={dp: 1, cp: 1, tp: 1}"};
  if (!has(text, "\n  steps:")) overrides.emplace_back("train.steps=100");
  for (const char* size : {"hidden_size=64", "num_hidden_layers=2", "num_attention_heads=4", "intermediate_size=96",
                           "vocab_size=256", "family=llama"}) {
    overrides.push_back("model." + std::string(size));
  }
  return load_recipe(folder.write("recipe.yaml", text), overrides, "");
}

Recipe of_megatron(const std::string& arguments) {
  return recipe_of("a.txt", "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --train-iters 20 " + arguments);
}

/// Polynomials of Newton and Schulz, a x + b x^3 + c x^5, one an iteration.
using Polynomials = std::vector<std::array<double, 3>>;
const Polynomials kSimple(5, {3.4445, -4.7750, 2.0315});
const Polynomials kQuintic = {{4.0848, -6.8946, 2.9270},
                              {3.9505, -6.3029, 2.6377},
                              {3.7418, -5.5913, 2.3037},
                              {2.8769, -3.1427, 1.2046},
                              {2.8366, -3.0525, 1.2012}};

at::Tensor orthogonalised(const at::Tensor& matrix, const Polynomials& polynomials) {
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = (is_tall ? matrix.t() : matrix) / matrix.norm();
  for (const auto& [a, b, c] : polynomials) {
    const at::Tensor square = x.mm(x.t());
    x = a * x + (b * square + c * square.mm(square)).mm(x);
  }
  return is_tall ? x.t() : x;
}

const Polynomials kPolarExpress = {{8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184}, {3.9096, -2.8234, 0.5250},
                                   {3.2856, -2.4153, 0.4853},   {2.2779, -1.6198, 0.3985}, {1.8726, -1.2307, 0.3585},
                                   {1.8564, -1.2132, 0.3568},   {1.8750, -1.2500, 0.3750}, {1.8750, -1.2500, 0.3750}};

/// The Muon of another tool, and its Adam for the other parameters.
struct OtherMuon {
  double rate, adam_rate, decay, momentum, beta1, beta2, eps;
  bool nesterov;
  Polynomials polynomials;
  std::function<double(double rows, double cols)> scale;
};

/// Expects that three steps by `recipe` are those of `other`.
void expect_steps(const Recipe& recipe, const OtherMuon& other) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble);
  const std::vector<std::vector<int64_t>> shapes = {{4, 9}, {11, 3}, {6, 6}, {7, 4}};
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<Parameter*> all;
  for (const auto& shape : shapes) {
    const std::string name = "p" + std::to_string(parameters.size());
    parameters.push_back(std::make_unique<Parameter>(full_parameter(name, shape, {}, options)));
    all.push_back(parameters.back().get());
  }
  all.back()->of_tokens = true;
  Fsdp fsdp({UnitSpec{"unit", all}}, {});
  std::vector<at::Tensor> wanted, first, second;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i]->tensor.detach().copy_(random_tensor(shapes[i], 1 + i));
    wanted.push_back(all[i]->tensor.detach().clone());
    first.push_back(at::zeros_like(wanted[i]));
    second.push_back(at::zeros_like(wanted[i]));
  }
  const auto optimizer = make_optimizer(recipe.optimizer, {{&fsdp, {}}});
  for (int step = 1; step <= 3; ++step) {
    for (size_t i = 0; i < all.size(); ++i) {
      const at::Tensor g = random_tensor(shapes[i], 100 * step + i);
      all[i]->tensor.mutable_grad().copy_(g);
      const bool is_matrix = i + 1 < all.size();
      at::Tensor update;
      if (is_matrix) {
        first[i] = other.momentum * first[i] + (1 - other.momentum) * g;
        const at::Tensor u = other.nesterov ? (1 - other.momentum) * g + other.momentum * first[i] : first[i];
        update = other.scale(static_cast<double>(g.size(0)), static_cast<double>(g.size(1))) *
                 orthogonalised(u, other.polynomials);
      } else {
        first[i] = other.beta1 * first[i] + (1 - other.beta1) * g;
        second[i] = other.beta2 * second[i] + (1 - other.beta2) * g * g;
        update = first[i] / (1 - std::pow(other.beta1, step)) /
                 ((second[i] / (1 - std::pow(other.beta2, step))).sqrt() + other.eps);
      }
      const double rate = is_matrix ? other.rate : other.adam_rate;
      wanted[i] = wanted[i] * (1 - rate * other.decay) - rate * update;
    }
    optimizer->step(recipe.optimizer.learning_rate);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_LT((all[i]->tensor.detach() - wanted[i]).abs().max().item<double>(), 1e-6 * other.rate) << i;
  }
}

double original_scale(double rows, double cols) {
  return std::sqrt(std::max(1.0, rows / cols));
}

// deepspeed/runtime/zero/muon/original_muon.py and engine.py of 0.19.5.
TEST(ConvertedNumbers, MuonOfDeepSpeed) {
  const auto of = [](const std::string& params) {
    return recipe_of("a.json", R"({"train_batch_size": 8, "zero_optimization": {"stage": 2},
                                   "optimizer": {"type": "Muon", "params": {)" +
                                   params + "}}}");
  };
  OtherMuon other{0.02, 3e-4, 0, 0.95, 0.9, 0.95, 1e-10, true, kSimple, original_scale};
  expect_steps(of(""), other);
  expect_steps(of(R"("lr": 1e-4, "muon_lr": 0.02, "adam_lr": 3e-4)"), other);
  other.decay = 0.1, other.momentum = 0.9, other.beta2 = 0.99, other.eps = 1e-6;
  other.rate = other.adam_rate = 1e-3;
  expect_steps(of(R"("lr": 1e-3, "weight_decay": 0.1, "momentum": 0.9, "betas": [0.9, 0.99], "eps": 1e-6)"), other);
}

// megatron/core/optimizer/emerging_optimizers.py of core_v0.19.0, over emerging_optimizers 0.4.0.
TEST(ConvertedNumbers, MuonOfMegatron) {
  const auto spectral = [](double rows, double cols) { return std::sqrt(std::max(rows, cols)); };
  OtherMuon other{1e-3, 1e-3, 0.01, 0.9, 0.9, 0.999, 1e-8, false, kQuintic, spectral};
  expect_steps(of_megatron("--optimizer muon --lr 1e-3"), other);
  other.polynomials = kPolarExpress;
  expect_steps(of_megatron("--optimizer muon --lr 1e-3 --muon-coefficient-type polar_express --muon-num-ns-steps 9"),
               other);
  other.polynomials = kQuintic;
  other.polynomials.insert(other.polynomials.end(), kQuintic.begin(), kQuintic.begin() + 2);
  expect_steps(of_megatron("--optimizer muon --lr 1e-3 --muon-num-ns-steps 7"), other);
  other.nesterov = true, other.polynomials = kSimple, other.polynomials.pop_back(), other.momentum = 0.95;
  other.scale = [](double rows, double cols) { return 0.2 * std::sqrt(rows / cols); };
  expect_steps(of_megatron("--optimizer muon --lr 1e-3 --muon-momentum 0.95 --muon-nesterov --muon-num-ns-steps 4 "
                           "--muon-coefficient-type simple --muon-scale-mode unit_rms_norm "
                           "--muon-extra-scale-factor 0.2"),
               other);
  other.scale = original_scale, other.decay = 0.1;
  expect_steps(of_megatron("--optimizer dist_muon --lr 1e-3 --muon-momentum 0.95 --muon-nesterov --muon-num-ns-steps 4 "
                           "--muon-coefficient-type simple --muon-scale-mode shape_scaling --weight-decay 0.1"),
               other);
}

/// Expects the learning rates of steps 1 to `num_steps`.
void expect_rates(const Recipe& recipe, int64_t num_steps, const std::function<double(double step)>& rate) {
  for (int64_t step = 1; step <= num_steps; ++step) {
    EXPECT_NEAR(learning_rate(recipe.schedule, recipe.optimizer.learning_rate, step, recipe.train.steps),
                rate(static_cast<double>(step)), 1e-15)
        << step;
  }
}

// deepspeed/runtime/lr_schedules.py of 0.19.5. The first step has the scheduler's initial rate, and after step k
// scheduler.step() counts k - 1.
TEST(ConvertedNumbers, SchedulesOfDeepSpeed) {
  const auto of = [](const std::string& type, const std::string& params) {
    return recipe_of("a.json", R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
                                   "scheduler": {"type": ")" +
                                   type + R"(", "params": {)" + params + "}}}");
  };
  const auto rates = [](double least, double peak, double warmup, bool is_log, double total) {
    return [=](double step) {
      const double last = step - 2;
      if (last < 0) return least;
      const double risen = is_log ? std::log(last + 1) / std::log(warmup) : last / warmup;
      const double fallen = total > 0 ? std::max(0.0, (total - last) / std::max(1.0, total - warmup)) : 1;
      return least + (peak - least) * (last < warmup ? risen : fallen);
    };
  };
  expect_rates(of("WarmupLR", R"("warmup_num_steps": 7)"), 20, rates(0, 3e-4, 7, true, 0));
  expect_rates(of("WarmupLR", R"("warmup_num_steps": 1, "warmup_max_lr": 1e-3)"), 20, rates(0, 1e-3, 2, true, 0));
  expect_rates(of("WarmupLR", R"("warmup_type": "linear", "warmup_min_lr": 1e-5, "warmup_num_steps": 7)"), 20,
               rates(1e-5, 3e-4, 7, false, 0));
  expect_rates(of("WarmupDecayLR", R"("total_num_steps": 100, "warmup_num_steps": 10)"), 100,
               rates(0, 1e-3, 10, true, 100));
  expect_rates(of("WarmupDecayLR", R"("total_num_steps": 100, "warmup_num_steps": 10, "warmup_min_lr": 1e-4)"), 100,
               rates(1e-4, 1e-3, 10, true, 100));
  expect_rates(of("WarmupLR", ""), 100, rates(0, 3e-4, 1000, true, 0));
  const auto cosine = [&](double step) {  // a step sooner than here: docs/recipe.md
    const double last = step - 2, progress = std::clamp((last - 10 + 1) / 90, 0.0, 1.0);
    return 3e-4 * (1e-4 + (1 - 1e-4) * (1 + std::cos(std::numbers::pi * progress)) / 2);
  };
  const Recipe recipe = of("WarmupCosineLR", R"("total_num_steps": 100, "warmup_num_steps": 10)");
  expect_rates(recipe, 11, rates(0, 3e-4, 10, true, 0));
  for (int64_t step = 12; step < 100; ++step) {
    EXPECT_NEAR(learning_rate(recipe.schedule, 3e-4, step + 1, 100), cosine(static_cast<double>(step)), 1e-15) << step;
  }
}

// megatron/core/optimizer_param_scheduler.py of core_v0.19.0: step k has the rate of k - 1 counted steps.
TEST(ConvertedNumbers, SchedulesOfMegatron) {
  const auto rates = [](const std::string& style, double first, double least, double warmup, double total) {
    return [=](double step) {
      const double counted = step - 1, peak = 1e-3;
      if (warmup > 0 && counted <= warmup) return first + (peak - first) * counted / warmup;
      if (style == "constant") return peak;
      if (counted > total) return least;
      const double begin = style == "WSD" ? total - 5 : warmup;
      const double fallen = std::max(0.0, (counted - begin) / (total - begin));
      const double left = style == "cosine" ? (std::cos(std::numbers::pi * fallen) + 1) / 2 : 1 - fallen;
      return least + left * (peak - least);
    };
  };
  expect_rates(of_megatron("--lr 1e-3"), 20, rates("linear", 0, 0, 0, 20));
  expect_rates(of_megatron("--lr 1e-3 --lr-decay-style cosine --lr-warmup-iters 4 --min-lr 1e-4"), 20,
               rates("cosine", 0, 1e-4, 4, 20));
  expect_rates(
      of_megatron("--lr 1e-3 --lr-warmup-fraction 0.25 --lr-warmup-init 1e-4 --lr-decay-iters 16 --min-lr 1e-5"), 20,
      rates("linear", 1e-4, 1e-5, 4, 16));
  expect_rates(of_megatron("--lr 1e-3 --lr-decay-style WSD --lr-wsd-decay-style linear --lr-wsd-decay-iters 5 "
                           "--lr-warmup-iters 3"),
               20, rates("WSD", 0, 0, 3, 20));
  expect_rates(of_megatron("--lr 1e-3 --lr-decay-style constant --lr-warmup-samples 32 --global-batch-size 8"), 20,
               rates("constant", 0, 0, 4, 20));
}

/// Returns the recipe's text for `configuration`.
std::string converted(const std::string& name, const std::string& configuration) {
  const RecipeFolder folder;
  return recipe_from(folder.write(name, configuration)).text;
}

TEST(ForeignLora, PeftsConfigurationIsTheSectionAdapter) {
  const std::string text =
      converted("adapter_config.json",
                R"({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "models/base", "r": 16,
          "lora_alpha": 32, "lora_dropout": 0.1, "use_rslora": true, "target_modules": ["q_proj", "mlp.up_proj", "lm_head"],
          "modules_to_save": ["norm"], "init_lora_weights": "gaussian", "bias": "none", "rank_pattern": {}})");
  for (const char* line : {"  rank: 16\n", "  alpha: 32\n", "  dropout: 0.1\n", "  use_rslora: true\n",
                           "  targets: [q_proj, \"*.mlp.up_proj\", lm_head]\n", "  train: [\"*norm.*\"]\n",
                           "  init: gaussian\n", "#   model.hf: the folder of models/base\n"}) {
    EXPECT_TRUE(has(text, line)) << line << text;
  }
  EXPECT_FALSE(has(text, "numbers change")) << text;
  const std::string least = converted("adapter_config.json", R"({"peft_type": "LORA", "target_modules": "all-linear",
                                                                 "layers_to_transform": 1})");
  for (const char* line : {"  rank: 8  # the default of PEFT", "  alpha: 8  # the default of PEFT",
                           "  targets: [all-linear]\n", "  layers: [1]\n"}) {
    EXPECT_TRUE(has(least, line)) << line << least;
  }
  const std::string pattern = converted("adapter_config.json", R"({"peft_type": "LORA", "target_modules": "all-linear",
                                                                   "layers_to_transform": "all"})");
  EXPECT_TRUE(has(pattern, "all is not the number of a layer")) << pattern;
}

TEST(ForeignLora, WordsOfAxolotlAndTrl) {
  const std::string axolotl =
      converted("a.yaml",
                "base_model: meta/llama\nadapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n"
                "lora_modules_to_save: [embed_tokens, lm_head]\npeft_layers_to_transform: [0, 1]\nlearning_rate: 1e-4\n"
                "zebra: 1\n");
  for (const char* line : {"  rank: 8\n", "  alpha: 16\n", "  targets: [all-linear]\n", "  layers: [0, 1]\n",
                           "  train: [\"*embed_tokens.*\", \"*lm_head.*\"]\n", "  learning_rate: 0.0001\n",
                           "#   zebra: 1: a recipe has no such setting"}) {
    EXPECT_TRUE(has(axolotl, line)) << line << axolotl;
  }
  const std::string trl = converted("t.yaml", "model_name_or_path: a\nuse_peft: true\nlora_target_modules: [q_proj]\n");
  for (const char* line : {"  rank: 16  # the default of TRL\n", "  alpha: 32  # the default of TRL\n",
                           "  dropout: 0.05  # the default of TRL\n", "  targets: [q_proj]\n"}) {
    EXPECT_TRUE(has(trl, line)) << line << trl;
  }
  const std::string nested =
      converted("n.yaml", "distributed_type: NO\npeft_config: {peft_type: LORA, r: 4, target_modules: [v_proj]}\n");
  EXPECT_TRUE(has(nested, "  rank: 4\n")) << nested;
  EXPECT_TRUE(has(nested, "  targets: [v_proj]\n")) << nested;
}

TEST(ForeignLora, RefusesDoraAndQuantizedBasesByName) {
  const std::string axolotl = converted("a.yaml",
                                        "base_model: a\nadapter: qlora\nlora_r: 8\nlora_alpha: 16\n"
                                        "lora_target_modules: [qkv_proj]\nload_in_4bit: true\n"
                                        "peft_use_dora: true\n");
  for (const char* line :
       {"#   adapter: qlora: QLoRA is not supported", "#   load_in_4bit: true: QLoRA is not supported",
        "#   peft_use_dora: true: DoRA is not supported", "PEFT has one adapter for the joined layers"}) {
    EXPECT_TRUE(has(axolotl, line)) << line << axolotl;
  }
  EXPECT_TRUE(has(converted("p.json", R"({"peft_type": "LORA", "target_modules": ".*q_proj", "use_dora": true})"),
                  "regular expressions are not converted: give adapter.targets names"));
}

}  // namespace
}  // namespace meshtrain::testing
