// Rows (coordinates of dp) generate different texts at the same time, from weights that are cut over the rows. The
// texts are the same as on one rank.

#include <gtest/gtest.h>

#include <set>

#include "mesh/agree.h"
#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "runtime/program/generate/generate.h"
#include "runtime/training/model/initialize.h"
#include "tests/matrix/cell.h"
#include "tests/runtime/program/generate/one_text.h"
#include "tests/support/full_run.h"
#include "tests/support/hosts.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;
using OptionsOf = std::function<GenerateOptions(size_t)>;

ModelShape shape_of(const std::string& family, bool tied) {
  ModelShape shape =
      recipe_of({{family, tied, "gqa", "none", "one", "fp64", "adamw"}, 1, 1, 1, "none", "contiguous", false, 1}, true,
                "")
          .model.shape;
  shape.initializer_range = 0.4;  // the next token is then hard to guess
  return shape;
}

void draw_weights(const Parameter& parameter) {
  initialize(parameter, 11);
}

/// Returns prompts of 1 to 12 tokens, which take one to three forwards of 4.
Prompts prompts(int64_t count) {
  Prompts all;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int64_t>& prompt = all.emplace_back();
    for (int64_t k = 0; k <= i * 5 % 12; ++k) prompt.push_back((3 + 31 * i + 7 * k * k) % 97);
  }
  return all;
}

/// Texts of unequal lengths, of which a third may end by a token and a third by ends_text.
OptionsOf options_with(const SamplingOptions& sampling) {
  return [sampling](size_t prompt) {
    GenerateOptions options{
        .max_tokens = 5 + static_cast<int64_t>(prompt * 7 % 9), .sampling = sampling, .prefill_tokens = 4};
    for (int64_t id = 0; prompt % 3 == 1 && id < 97; id += 5) options.stop.push_back(id);
    if (prompt % 3 == 2) options.ends_text = [](int64_t token) { return token % 5 == 0; };
    return options;
  };
}

/// Returns the texts, the same on every rank.
std::vector<OneText> texts(LanguageModel& model, const Prompts& prompts, const OptionsOf& options_of) {
  std::vector<OneText> all(prompts.size());
  std::vector<std::vector<int64_t>> seen(prompts.size());
  generate(model, prompts, options_of,
           {.token = [&](size_t prompt, int64_t token) { seen[prompt].push_back(token); },
            .ends =
                [&](size_t prompt, int, const GenerationResult& result) {
                  all[prompt] = {result.tokens, result.end};
                }});
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(seen[i], all[i].tokens);
  return all;
}

DeviceMesh mesh_of(int64_t tp, const Group& ranks) {
  return DeviceMesh(MeshLayout({{"dp", ranks.size() / tp}, {"cp", 1}, {"tp", tp}}), ranks);
}

void expect_texts_of_one_rank(LanguageModel& on_rows, LanguageModel& alone, const std::string& what) {
  const int64_t rows = on_rows.rows().size();
  for (const SamplingOptions& sampling : {SamplingOptions{}, {0.8, 20, 0.9, 6}}) {
    for (const int64_t count : {int64_t{1}, rows, 2 * rows + 1}) {
      const Prompts asked = prompts(count);
      const OptionsOf options_of = options_with(sampling);
      const std::vector<OneText> found = texts(on_rows, asked, options_of);
      for (size_t i = 0; i < asked.size(); ++i) {
        const OneText wanted = one_text(alone, asked[i], i, options_of(i));
        EXPECT_EQ(found[i].tokens, wanted.tokens) << what << ": prompt " << i << " of " << count;
        EXPECT_EQ(found[i].end, wanted.end) << what << ": prompt " << i << " of " << count;
      }
    }
  }
}

TEST(GenerateRows, TextsAreThoseOfOneRank) {
  const ScratchFolder folder(world());
  const DeviceMesh one = mesh_of(1, Group());
  for (const auto& [family, tied] : {std::pair{"llama", false}, {"qwen3", true}}) {
    const ModelShape shape = shape_of(family, tied);
    LanguageModel alone(shape, one, {at::kDouble}, draw_weights);
    for (const int64_t tp : {1, 2}) {
      if (world().size() % tp != 0) continue;
      for (const auto& [hosts, on_disk] :
           {std::pair{Hosts::Found, false}, {Hosts::Two, false}, {Hosts::Refused, true}}) {
        if (world().size() == 8 && hosts == Hosts::Two && !is_full_run()) continue;  // as with four ranks
        const DeviceMesh mesh = mesh_of(tp, world_on(hosts));
        LanguageModel::Options options{.dtype = at::kDouble};
        if (on_disk) options.offload = Offload::Disk, options.offload_folder = folder.path();
        LanguageModel on_rows(shape, mesh, options, draw_weights);
        expect_texts_of_one_rank(on_rows, alone,
                                 std::string(family) + " " + mesh.layout().describe() + " " + name_of(hosts));
      }
    }
  }
}

TEST(GenerateRows, AFreeRowTakesTheNextPrompt) {
  const DeviceMesh mesh = mesh_of(1, world());
  LanguageModel model(shape_of("llama", false), mesh, {}, draw_weights);
  const auto rows = static_cast<size_t>(world().size());
  // The last row generates all other texts while the first texts keep the other rows busy.
  std::vector<int> taken_by;
  std::vector<size_t> ended;
  generate(model, prompts(static_cast<int64_t>(2 * rows)),
           [&](size_t prompt) { return GenerateOptions{.max_tokens = prompt + 1 < rows ? 40 : 2}; },
           {.begins =
                [&](size_t prompt, int row) {
                  EXPECT_EQ(prompt, taken_by.size());
                  taken_by.push_back(row);
                },
            .ends = [&](size_t prompt, int, const GenerationResult&) { ended.push_back(prompt); }});
  ASSERT_EQ(taken_by.size(), 2 * rows);
  for (size_t prompt = 0; prompt < taken_by.size(); ++prompt) {
    EXPECT_EQ(taken_by[prompt], static_cast<int>(std::min(prompt, rows - 1))) << prompt;
  }
  if (rows > 1) {
    EXPECT_EQ(ended.front(), rows - 1) << "while the others are under way";
  }
  EXPECT_EQ(ended.size(), 2 * rows);
}

int64_t bytes_of(const Unit& unit) {
  int64_t bytes = 0;
  for (const FlatBuffer& buffer : unit.buffers()) bytes += static_cast<int64_t>(buffer.values().nbytes());
  return bytes;
}

/// The bytes of a model's units: the sum of all, and the largest sum of two neighbours.
struct UnitBytes {
  explicit UnitBytes(LanguageModel& model) {
    const std::vector<Unit>& units = model.model().fsdp().units();
    for (size_t i = 0; i < units.size(); ++i) {
      all += bytes_of(units[i]);
      if (i > 0) two = std::max(two, bytes_of(units[i - 1]) + bytes_of(units[i]));
    }
  }
  int64_t all = 0, two = 0;
};

// Every rank gathers each unit once in a forward, whether its row computes or waits.
TEST(GenerateRows, EveryRowGathersInEveryForward) {
  const DeviceMesh mesh = mesh_of(1, world());
  LanguageModel model(shape_of("llama", false), mesh, {}, draw_weights);
  mesh.traffic().clear();
  // One text: 9 tokens in 3 forwards, and 11 more tokens. All rows but the first wait.
  generate(model, {{1, 2, 3, 4, 5, 6, 7, 8, 9}},
           [](size_t) { return GenerateOptions{.max_tokens = 12, .prefill_tokens = 4}; }, {});
  const Traffic weights = mesh.traffic().total("", "dp.parameters"), reports = mesh.traffic().total("", "generate");
  const bool several = world().size() > 1;
  EXPECT_EQ(weights.buffer_bytes, several ? 14 * UnitBytes(model).all : 0);
  EXPECT_EQ(reports.buffer_bytes, several ? 14 * world().size() * 2 * 8 : 0) << "two numbers a row";
}

TEST(GenerateRows, ARankHoldsItsShardAndTwoUnits) {
  const ScratchFolder folder(world());
  HostMemory& memory = HostMemory::counted();
  const int64_t n = world().size();
  ModelShape shape = shape_of("llama", false);
  shape.num_hidden_layers = 6;
  for (const bool on_disk : {false, true}) {
    const DeviceMesh mesh = mesh_of(1, world_on(Hosts::Refused));  // without windows
    LanguageModel::Options options;
    if (on_disk) options.offload = Offload::Disk, options.offload_folder = folder.path();
    const int64_t before = memory.live();
    LanguageModel model(shape, mesh, options, draw_weights);
    const UnitBytes bytes(model);
    const bool cut = n > 1 || on_disk;
    const int64_t held = memory.live() - before;
    EXPECT_EQ(held, !cut ? bytes.all : bytes.two + (on_disk ? 0 : bytes.all / n));
    if (cut && n != 2) {
      EXPECT_LT(held, bytes.all);
    }
    texts(model, prompts(n), options_with({}));
    EXPECT_EQ(memory.live() - before, held);
  }
}

TEST(GenerateRows, RanksOfAHostHoldTheWeightsOnce) {
  if (world().size() == 1) return;
  HostMemory& memory = HostMemory::counted();
  const DeviceMesh mesh = mesh_of(1, world_on(Hosts::Found));
  const int64_t before = memory.live(), common = WindowMemory::counted().common();
  LanguageModel model(shape_of("llama", false), mesh, {}, draw_weights);
  EXPECT_EQ(memory.live() - before, 0);
  EXPECT_EQ(WindowMemory::counted().common() - common, UnitBytes(model).all);
}

// The row of the last prompt fails at its third token; the others are computing, or have no prompt.
TEST(GenerateRows, AnErrorOfOneRowEndsAllAfterTheTextsBeforeIt) {
  for (const int64_t tp : {1, 2}) {
    if (world().size() % tp != 0) continue;
    const DeviceMesh mesh = mesh_of(tp, world());
    const ModelShape shape = shape_of("llama", false);
    LanguageModel model(shape, mesh, {at::kDouble}, draw_weights);
    const int64_t rows = model.rows().size();
    for (const int64_t count : {rows, std::max<int64_t>(rows - 1, 1)}) {
      const Prompts asked = prompts(count);
      const size_t last = asked.size() - 1;
      std::vector<int64_t> chosen;
      std::set<size_t> ended;
      const auto options_of = [&](size_t prompt) {
        GenerateOptions options{.max_tokens = 30, .prefill_tokens = 4};
        if (prompt != last) return options;
        options.rules.no_repeat_ngram_size = 1;  // excludes what the text has
        for (int64_t id = 5; id < shape.vocab_size; ++id) options.rules.bad_words_ids.push_back({id});
        return options;
      };
      const std::string error = message<AgreedError>([&] {
        generate(model, asked, options_of,
                 {.token =
                      [&](size_t prompt, int64_t token) {
                        if (prompt == last) chosen.push_back(token);
                      },
                  .ends = [&](size_t prompt, int, const GenerationResult&) { ended.insert(prompt); }});
      });
      const std::string position = std::to_string(asked[last].size() + chosen.size());
      EXPECT_EQ(error, "prompt " + std::to_string(count) + ": no token is left for position " + position +
                           ": no_repeat_ngram_size, bad_words_ids and the minimum length exclude all");
      EXPECT_GE(chosen.size(), 3u);
      EXPECT_EQ(ended.size(), last) << "all others";
      EXPECT_EQ(texts(model, prompts(1), options_with({})).front().tokens.empty(), false) << "ranks are in step";
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
