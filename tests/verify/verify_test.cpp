// meshtrain verify as its users run it.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "mesh/device/cuda/plugin.h"
#include "tests/support/scratch.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kRecipe = R"(model:
  family: qwen3
  hidden_size: 32
  intermediate_size: 48
  num_hidden_layers: 1
  num_attention_heads: 4
  num_key_value_heads: 2
  head_dim: 8
  vocab_size: 65
  initializer_range: 0.1
data:
  tokens: tokens.bin
  dtype: uint8
  layout: stream
  ignore_id: 7
train:
  sequence_length: 16
  global_batch: 8
  micro_batch: 2
  steps: 4
  clip_norm: 0.1
optimizer:
  learning_rate: 1.0e-5
)";

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Verify : public ::testing::Test {
 protected:
  Verify() { write("tiny.yaml", kRecipe); }

  std::string path(const std::string& name) const { return folder_.path() / name; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }
  Ending verify(int ranks, const Words& arguments) const {
    Words words = {"verify", path("tiny.yaml")};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_meshtrain_on_ranks(ranks, words);
  }
  /// Returns the one line that a mistake ends with, printed by one rank.
  std::string complaint(int ranks, const Words& arguments) const {
    const Ending ending = verify(ranks, arguments);
    EXPECT_EQ(ending.status, 2) << ending.err;
    EXPECT_EQ(count(ending.err, "meshtrain: "), 1) << ending.err;
    const size_t begin = ending.err.find("meshtrain: ");
    return begin == std::string::npos ? "" : ending.err.substr(begin, ending.err.find('\n', begin) - begin);
  }
  /// Returns the report for `mesh` without the sums of `skipped`.
  std::string found(int ranks, const std::string& mesh, const std::string& skipped, const Words& more = {}) const {
    Words words = {"--mesh", mesh, "--inject", "skip-reduce:" + skipped};
    words.insert(words.end(), more.begin(), more.end());
    const Ending ending = verify(ranks, words);
    EXPECT_EQ(ending.status, 1) << ending.err << ending.out;
    EXPECT_TRUE(has(ending.out, "sums for " + skipped + " are left out")) << ending.out;
    EXPECT_TRUE(has(ending.out, "\nDIFFERENT: ")) << ending.out;
    EXPECT_TRUE(has(ending.out, "differs on rank ")) << ending.out;
    EXPECT_TRUE(has(ending.out, "\n  difference: of ") || has(ending.out, "\n  difference: |a - b|"))
        << "of what it is a share: " << ending.out;
    return ending.out;
  }

 private:
  ScratchFolder folder_;
};

TEST_F(Verify, ComparesAMeshWithOneRank) {
  const Ending ending = verify(4, {"--mesh", "dp=2,tp=2", "--steps", "2"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.err, "");
  for (const char* part :
       {"tiny.yaml: mesh dp=2,cp=1,tp=2 against one rank\n", "made, as there is no ",
        "2 steps of 8 samples of 16 tokens", "(the recipe's: 1e-05)", "eps 1e-07 (the recipe's: 1e-08)",
        "fp64 (the recipe's: fp32) on cpu", "sequence parallel on", "4 ranks             1 rank", "\n  worst gradient ",
        "\nequal: loss, gradient norm, 14 gradients and 14 weight updates are within their bounds\n"}) {
    EXPECT_TRUE(has(ending.out, part)) << part << " is missing in\n" << ending.out;
  }
}

TEST_F(Verify, RefusesAModelThatTheMachineCannotHold) {
  const Words large = {"--mesh", "dp=2", "--set", "model.vocab_size=2000000000"};
  const std::string message = complaint(2, large);
  EXPECT_TRUE(has(message, "meshtrain: the steps on one rank need ")) << message;
  EXPECT_TRUE(message.ends_with(" free: give --shrink, which verifies a smaller model of the same kind")) << message;
}

TEST_F(Verify, PrintsEveryParameterOnRequest) {
  const Ending ending = verify(1, {"--all"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(count(ending.out, "\n  gradient   "), 14) << ending.out;
  EXPECT_EQ(count(ending.out, "\n  weight update   "), 14) << ending.out;
  EXPECT_EQ(count(ending.out, "self_attn.q_norm.weight\n"), 2) << ending.out;
}

TEST_F(Verify, ReadsTheRecipesTokens) {
  std::string tokens;
  for (int i = 0; i < 1000; ++i) tokens += static_cast<char>(i * i % 61);
  write("tokens.bin", tokens);
  const Ending ending = verify(2, {"--mesh", "cp=2", "--precision", "fp32"});
  EXPECT_EQ(ending.status, 0) << ending.err << ending.out;
  EXPECT_TRUE(has(ending.out, path("tokens.bin") + ", 62 samples\n")) << ending.out;

  tokens[20] = 80;  // only some ranks read it
  write("tokens.bin", tokens);
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2"}), "token 20 has id 80, beyond the vocabulary of 65"));
}

TEST_F(Verify, ComparesInBf16) {
  EXPECT_EQ(verify(4, {"--mesh", "tp=2,cp=2", "--precision", "bf16"}).status, 0);
  found(2, "dp=2", "dp", {"--precision", "bf16"});
}

TEST_F(Verify, ShrinksButNeverHidesAnImpossibleMesh) {
  const Ending ending = verify(
      2, {"--mesh", "tp=2", "--shrink", "--set", "model.num_hidden_layers=40", "--set", "model.vocab_size=50001"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "  model      qwen3, 40 layers of hidden size 32")) << ending.out;
  EXPECT_TRUE(has(ending.out,
                  "  shrunk to  2 layers of hidden size 32, 4 heads of 8 with 2 KV heads, feed-forward 48, "
                  "vocabulary 65\n"))
      << ending.out;
  EXPECT_TRUE(
      has(complaint(4, {"--mesh", "tp=4", "--shrink"}), "model.num_key_value_heads: 2 does not divide over tp=4"));
}

TEST_F(Verify, FindsMissingSumsOverDp) {
  const std::string out = found(2, "dp=2", "dp", {"--set", "parallel.fsdp.mode=no_shard"});
  EXPECT_TRUE(has(out, "the loss of the first step is equal")) << out;
  EXPECT_TRUE(has(out, "gradients differ between dp replicas (14 of 14")) << out;
  EXPECT_TRUE(has(out, ": a sum over dp is missing or wrong")) << out;
}

TEST_F(Verify, FindsMissingSumsOfShards) {
  const std::string out = found(2, "dp=2", "dp");
  EXPECT_TRUE(has(out, "the loss of the first step is equal")) << out;
  EXPECT_TRUE(
      has(out, "dp ranks keep shards of the gradients: a sum over dp, or the input of each of its ranks, is wrong"))
      << out;
}

TEST_F(Verify, FindsMissingSumsOverTp) {
  const std::string out = found(4, "dp=2,tp=2", "tp");
  EXPECT_TRUE(has(out, "dp replicas hold the same gradients; dp=2 alone is equal\n")) << out;
  EXPECT_TRUE(has(out, "gradients differ between tp replicas")) << out;
  EXPECT_TRUE(has(out, "tp=2 alone is DIFFERENT (most: gradient of ")) << out;
}

TEST_F(Verify, FindsMissingSumsOverCp) {
  const std::string out = found(2, "cp=2", "cp", {"--set", "parallel.fsdp.mode=no_shard"});
  EXPECT_TRUE(has(out, "gradients differ between cp replicas")) << out;
  EXPECT_TRUE(has(out, "a sum over cp is missing or wrong")) << out;
}

TEST_F(Verify, FindsMissingSumsOverStages) {
  const Words tied = {"--set", "model.tie_word_embeddings=true", "--set", "model.num_hidden_layers=2"};
  const std::string out = found(4, "pp=2,dp=2", "pp.gradients", tied);
  EXPECT_TRUE(has(out, "gradients differ between pp replicas (1 of 1, most: model.embed_tokens.weight)")) << out;
  EXPECT_TRUE(has(out, "pp=2 alone is DIFFERENT")) << out;
  EXPECT_TRUE(has(out, "pipeline 1f1b over 2 stages of 1 layer\n")) << out;
}

TEST_F(Verify, FindsMissingSumsInsideLayers) {
  const std::string out = found(4, "tp=2,cp=2", "tp.linear");
  EXPECT_TRUE(has(out, "the loss of the first step differs")) << out;
  EXPECT_TRUE(has(out, "cp replicas hold the same gradients; cp=2 alone is equal\n")) << out;
  EXPECT_TRUE(has(out, "tp=2 alone is DIFFERENT")) << out;
  EXPECT_TRUE(has(out, "the communication over tp inside the layers")) << out;
}

TEST_F(Verify, FindsMissingSumsOfGradientsOverCp) {
  const std::string out = found(4, "dp=2,cp=2", "cp.gradients", {"--set", "parallel.fsdp.mode=no_shard"});
  EXPECT_TRUE(has(out, "dp replicas hold the same gradients; dp=2 alone is equal\n")) << out;
  EXPECT_TRUE(has(out, "gradients differ between cp replicas")) << out;
  EXPECT_TRUE(has(out, "cp=2 alone is DIFFERENT")) << out;
}

TEST_F(Verify, FindsAMissingVote) {
  const std::string out = found(2, "dp=2", "vote", {"--set", "train.clip_norm=0"});
  EXPECT_TRUE(has(out, "\nDIFFERENT: loss; gradient norm\n")) << out;
  EXPECT_TRUE(has(out, "every gradient of the first step is equal: look at how the loss and the norm")) << out;
}

TEST_F(Verify, FindsAMissingVoteWhereGradientsAreClipped) {
  const std::string out =
      found(2, "dp=2", "vote", {"--set", "train.clip_norm=0.1", "--set", "parallel.fsdp.mode=no_shard"});
  EXPECT_TRUE(has(out, "\nDIFFERENT: loss; gradient norm; ")) << out;
  EXPECT_TRUE(has(out, "every gradient of the first step is equal: look at how the loss and the norm")) << out;
}

TEST_F(Verify, SaysWhatItDoesWithDocuments) {
  const Ending ending = verify(2, {"--mesh", "cp=2", "--set", "data.documents=0"});
  EXPECT_EQ(ending.status, 0) << ending.err << ending.out;
  EXPECT_TRUE(has(ending.out, "; documents end with token 0, labels across their ends count\n")) << ending.out;
}

TEST_F(Verify, SumsUpSeveralRecipes) {
  write("other.yaml", std::string(kRecipe) + "parallel: {mesh: {tp: 2}}\n");
  const Ending ending = verify(2, {path("other.yaml"), "--set", "parallel.mesh.cp=1", "--mesh", "dp=2"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(count(ending.out, "\nequal: "), 2) << ending.out;
  EXPECT_TRUE(has(ending.out, "\n2 of 2 recipes compute on their mesh what one rank computes\n")) << ending.out;

  const Ending broken = run_meshtrain_on_ranks(
      2, {"verify", path("other.yaml"), path("other.yaml"), "--inject", "skip-reduce:tp.linear"});
  EXPECT_EQ(broken.status, 1) << broken.err;
  EXPECT_TRUE(has(broken.out, "\n0 of 2 recipes compute on their mesh what one rank computes; DIFFERENT: " +
                                  path("other.yaml") + ", "))
      << broken.out;
}

TEST_F(Verify, SaysHowToStartAMesh) {
  write("other.yaml", std::string(kRecipe) + "parallel: {mesh: {tp: 2}}\n");
  EXPECT_EQ(
      complaint(1, {path("other.yaml")}),
      "meshtrain: " + path("other.yaml") +
          ": mesh dp=1,cp=1,tp=2 needs 2 ranks, but 1 was started: start mpirun -n 2 meshtrain verify ..., or give "
          "another --mesh");
}

TEST_F(Verify, RefusesWhatItDoesNotKnow) {
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2", "--inject", "melt:dp"}), "unknown fault: use skip-reduce:X"));
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2", "--inject", "skip-reduce:tp"}),
                  "mesh dp=2,cp=1,tp=1 has one rank along tp, which sums nothing"));
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2", "--inject", "skip-reduce:tp.linaer"}), "did you mean tp.linear?"));
  EXPECT_TRUE(has(complaint(2, {"--mesh", "cp=2", "--set", "parallel.context.algorithm=ring", "--inject",
                                "skip-reduce:cp.attention"}),
                  "sums nothing for cp.attention: use count, dp, dp.gradients, vote"));
  EXPECT_TRUE(has(complaint(1, {"--steps", "0"}), "0 is not a whole number from 1 to "));
  if (!is_cuda_driver_there()) {
    EXPECT_TRUE(has(complaint(1, {"--device", "cuda"}), "device: cuda"));
  }
  EXPECT_TRUE(has(complaint(1, {"--precision", "fp8"}), "--precision"));
  EXPECT_TRUE(has(complaint(1, {path("absent.yaml")}), "absent.yaml"));
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2", "--precision", "fp16_mixed", "--set", "train.precision=fp16_mixed",
                                "--set", "train.loss_scale.initial=1e12"}),
                  "the gradients of one rank are not finite: lower train.loss_scale.initial"));
}

// The exact reference is in fp32, without what the recipe's precision alone has.
TEST_F(Verify, ComparesPrecisionsWithTheirOwnSettings) {
  for (const Words& settings :
       {Words{"bf16_mixed", "parallel.fsdp.reduce_dtype=bf16"}, Words{"fp16_mixed", "train.loss_scale.initial=1024"},
        Words{"bf16", "train.stochastic_rounding=true"}}) {
    const Ending ending = verify(2, {"--mesh", "dp=2", "--precision", settings[0], "--set",
                                     "train.precision=" + settings[0], "--set", settings[1]});
    EXPECT_EQ(ending.status, 0) << settings[0] << ending.err << ending.out;
  }
  const Ending wide = verify(2, {"--mesh", "dp=2", "--precision", "fp64", "--set", "train.precision=bf16", "--set",
                                 "optimizer.state_dtype=fp32"});
  EXPECT_EQ(wide.status, 0) << wide.err << wide.out;
}

TEST_F(Verify, ComparesFrozenParametersGroupsAndMuon) {
  write("tiny.yaml", kRecipe + std::string(R"(  name: muon
  groups: [{pattern: "*norm*", weight_decay: 0.5}]
)"));
  const Ending ending =
      verify(4, {"--mesh", "dp=2,tp=2", "--all", "--set", "train.freeze=[\"*embed*\", \"*.k_proj.*\"]", "--set",
                 "parallel.fsdp.mode=full_shard"});
  EXPECT_EQ(ending.status, 0) << ending.err << ending.out;
  EXPECT_TRUE(has(ending.out, "equal: loss, gradient norm, 12 gradients and 14 weight updates")) << ending.out;
}

TEST_F(Verify, ComparesTheChoicesOfExpertsOrReplaysThem) {
  Words settings = {"--mesh", "dp=2,tp=2"};
  for (const char* setting : {"model.family=mixtral", "model.num_experts=4", "model.num_experts_per_tok=2",
                              "model.head_dim=8", "train.experts={balance: sequence, coefficient: 0.1}"}) {
    settings.insert(settings.end(), {"--set", setting});
  }
  const Ending exact = verify(4, settings);
  EXPECT_EQ(exact.status, 0) << exact.err << exact.out;
  EXPECT_TRUE(has(exact.out, "  tokens' experts                       0                  0     0.0e+00  0.0e+00\n"))
      << exact.out;
  EXPECT_FALSE(has(exact.out, "experts: the choices")) << exact.out;
  for (const char* precision : {"fp32", "bf16"}) {
    Words words = settings;
    words.insert(words.end(), {"--precision", precision});
    const Ending ending = verify(4, words);
    EXPECT_EQ(ending.status, 0) << ending.err << ending.out;
    EXPECT_TRUE(has(ending.out, "experts: the choices of one rank, of which rounding on this mesh would change "))
        << ending.out;
    EXPECT_TRUE(has(ending.out, " of 128\n")) << ending.out;
  }
}

TEST_F(Verify, FindsMissingSumsOfExpertsWhereDpIsOneRank) {
  Words words = {"--all"};
  for (const char* setting : {"model.family=mixtral", "model.num_experts=4", "model.num_experts_per_tok=2",
                              "model.head_dim=8", "parallel.fsdp.mode=no_shard"}) {
    words.insert(words.end(), {"--set", setting});
  }
  const std::string out = found(4, "tp=2,cp=2,ep=2", "dp.gradients", words);
  EXPECT_TRUE(has(out, "mlp.experts.gate_up_proj")) << out;
  words.insert(words.end(), {"--mesh", "tp=2,cp=2,ep=4", "--inject", "skip-reduce:dp.gradients"});
  EXPECT_TRUE(has(complaint(4, words), "mesh dp=1,cp=2,tp=2,ep=4 has one rank along dp, which sums nothing"));
}

// The router's product is in fp32, its bias is fp32 among parameters in bf16.
TEST_F(Verify, ComparesRoutersWithABiasInHalves) {
  Words words = {"--mesh", "dp=2,tp=2", "--precision", "bf16_mixed", "--steps", "2"};
  for (const char* setting :
       {"model.family=dots1", "model.num_hidden_layers=2", "model.num_experts=6", "model.num_experts_per_tok=2",
        "model.moe_intermediate_size=12", "model.shared_expert_intermediate_size=24", "model.mlp_only_layers=[0]",
        "model.n_group=3", "model.topk_group=2",
        "train.experts={balance: sequence, coefficient: 0.1, bias_update: 0.01}", "parallel.fsdp.mode=full_shard"}) {
    words.insert(words.end(), {"--set", setting});
  }
  const Ending ending = verify(4, words);
  EXPECT_EQ(ending.status, 0) << ending.err << ending.out;
  EXPECT_TRUE(has(ending.out, "experts: the choices of one rank")) << ending.out;
}

TEST_F(Verify, ComparesAdapters) {
  const std::string adapters = "adapter: {rank: 2, targets: [v_proj, down_proj], dropout: 0.1}\n";
  write("tiny.yaml", kRecipe + adapters);
  const Ending ending = verify(4, {"--mesh", "dp=2,tp=2"});
  EXPECT_EQ(ending.status, 0) << ending.err << ending.out;
  EXPECT_TRUE(has(ending.out, "equal: loss, gradient norm, 4 gradients and 18 weight updates")) << ending.out;
  // With B = 0 the gradient of A would be zero, and its missing sum could not be found.
  const std::string out = found(2, "tp=2", "tp.gradients");
  EXPECT_TRUE(has(out, "v_proj.lora_A.weight  differs on rank ")) << out;
}

}  // namespace
}  // namespace meshtrain::testing
