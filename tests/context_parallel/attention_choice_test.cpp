#include "context_parallel/attention_choice.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace meshtrain {
namespace {

constexpr int kHopper = 90;

AttentionKernel choose(const AttentionShape& shape, int architecture = kHopper) {
  return choose_attention(shape, architecture);
}

AttentionShape llama(c10::ScalarType dtype, int64_t positions, int64_t head_dim = 64) {
  return {dtype, 32, 8, head_dim, positions, positions, true};
}

TEST(AttentionChoice, IsByShape) {
  for (const c10::ScalarType half : {c10::kBFloat16, c10::kHalf}) {
    EXPECT_EQ(choose(llama(half, 4096)), AttentionKernel::CuDnn);
    EXPECT_EQ(choose(llama(half, 4096, 128)), AttentionKernel::CuDnn);
    EXPECT_EQ(choose(llama(half, 4096, 256)), AttentionKernel::Flash);
    EXPECT_EQ(choose(llama(half, 4096, 512)), AttentionKernel::Efficient);
    for (const int64_t positions : {128, 256, 512, 513}) {
      EXPECT_EQ(choose(llama(half, positions)), AttentionKernel::CuDnn) << positions;
    }
    // Lengths of prompts, for each of which cuDNN would build a plan.
    for (const int64_t positions : {1, 127, 129, 320, 511}) {
      EXPECT_EQ(choose(llama(half, positions)), AttentionKernel::Flash) << positions;
    }
    EXPECT_EQ(choose({half, 32, 8, 64, 256, 200, false}), AttentionKernel::Flash);
    // One token during generation, and a rectangle of few keys.
    EXPECT_EQ(choose({half, 32, 8, 64, 1, 4096, false}), AttentionKernel::Flash);
    EXPECT_EQ(choose({half, 32, 32, 64, 4096, 1, false}), AttentionKernel::Flash);
  }
  EXPECT_EQ(choose(llama(c10::kFloat, 4096)), AttentionKernel::Efficient);
  EXPECT_EQ(choose(llama(c10::kFloat, 1, 4)), AttentionKernel::Efficient);
}

// cuDNN's backward gives NaN where 64 keys are left over of 128, unless causality masks them (pytorch#196678).
TEST(AttentionChoice, RectanglesWith64KeysLeftOverAreNotCuDnns) {
  for (const c10::ScalarType half : {c10::kBFloat16, c10::kHalf}) {
    for (const int64_t keys : {640, 641, 703, 705, 768}) {
      EXPECT_EQ(choose({half, 32, 8, 64, 4096, keys, false}), AttentionKernel::CuDnn) << keys;
    }
    for (const int64_t keys : {576, 704, 4160}) {
      EXPECT_EQ(choose({half, 32, 8, 64, 4096, keys, false}), AttentionKernel::Flash) << keys;
      EXPECT_EQ(choose({half, 32, 8, 64, keys, keys, true}), AttentionKernel::CuDnn) << keys;
    }
    EXPECT_EQ(choose({half, 32, 8, 512, 4096, 704, false}), AttentionKernel::Efficient);
  }
  EXPECT_EQ(choose({c10::kFloat, 32, 8, 64, 4096, 704, false}), AttentionKernel::Efficient);
}

// cuDNN corrupts texts on sm_100 (pytorch#193893).
TEST(AttentionChoice, CuDnnIsForHopperAlone) {
  for (const int architecture : {80, 89, 100, 103, 120}) {
    EXPECT_EQ(choose(llama(c10::kBFloat16, 4096), architecture), AttentionKernel::Flash) << architecture;
    EXPECT_EQ(choose(llama(c10::kHalf, 4096, 512), architecture), AttentionKernel::Efficient) << architecture;
    EXPECT_EQ(choose(llama(c10::kFloat, 4096), architecture), AttentionKernel::Efficient) << architecture;
  }
}

std::string refusal(const AttentionShape& shape) {
  try {
    choose(shape);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(AttentionChoice, SaysWhatThereIsNoKernelFor) {
  EXPECT_NE(refusal(llama(c10::kBFloat16, 128, 12)).find("BFloat16 with head dim 12"), std::string::npos);
  EXPECT_NE(refusal(llama(c10::kFloat, 128, 6)).find("of 4 for fp32"), std::string::npos);
  EXPECT_NE(refusal(llama(c10::kDouble, 128)).find("fp64 is only for the CPU"), std::string::npos);
}

// A run lists the choices for its shapes, each once, and not all when there are many.
TEST(AttentionChoice, IsNoted) {
  const auto count = [](const std::string& part) {
    int64_t found = 0;
    for (const std::string& line : chosen_attention()) found += line.find(part) != std::string::npos;
    return found;
  };
  for (int64_t i = 0; i < 9; ++i) choose({c10::kHalf, 1, 1, 8, 1, 1 + i, false});
  EXPECT_EQ(count("flash: 1 query, 3 keys, 1 head of 8 over 1 KV head, Half"), 1);
  EXPECT_EQ(chosen_attention().size(), 9u);
  EXPECT_EQ(count("more shapes"), 1);
}

// Divided samples that flash does not take never use cuDNN, which keeps a plan for each shape.
TEST(AttentionChoice, DocumentsAreOneCallOfFlashOrOneEachOfAKernelWithoutPlans) {
  for (const c10::ScalarType dtype : {c10::kBFloat16, c10::kHalf, c10::kFloat}) {
    for (int64_t head_dim = 8; head_dim <= 512; head_dim += 8) {
      const bool taken = flash_takes(dtype, head_dim);
      EXPECT_EQ(taken, dtype != c10::kFloat && head_dim <= 256);
      EXPECT_TRUE(taken || choose(llama(dtype, 4096, head_dim)) != AttentionKernel::CuDnn);
    }
  }
  EXPECT_FALSE(flash_takes(c10::kHalf, 12));
  EXPECT_FALSE(flash_takes(c10::kDouble, 64));
}

// One line for all lengths. This test runs before the shapes of these heads, so that its line is among those listed.
TEST(AttentionChoice, DocumentsAreNotedOnce) {
  for (int64_t i = 1; i < 9; ++i) note_documents({c10::kByte, 1, 1, 8, i, i + 1, i % 2 == 0});
  std::vector<std::string> lines = chosen_attention();
  lines.resize(2);
  EXPECT_EQ(lines[0], "flash: documents of any lengths, 1 head of 8 over 1 KV head, Byte");
  EXPECT_EQ(lines[1], "flash: documents of any lengths, causal, 1 head of 8 over 1 KV head, Byte");
}

TEST(AttentionChoice, Names) {
  EXPECT_STREQ(name(AttentionKernel::CuDnn), "cudnn");
  EXPECT_STREQ(name(AttentionKernel::Flash), "flash");
  EXPECT_STREQ(name(AttentionKernel::Efficient), "efficient");
}

}  // namespace
}  // namespace meshtrain
