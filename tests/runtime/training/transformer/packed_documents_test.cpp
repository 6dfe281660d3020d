// Documents packed into samples have the results of separate documents.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "runtime/training/data/options.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/support/small_model.h"

namespace meshtrain {
namespace {

using testing::precision_in;
using testing::small_model;

constexpr int64_t kS = 24;
constexpr int64_t kVocabulary = 50;
constexpr int64_t kEnd = 7;  // the separator

/// Samples from a list.
class Listed final : public Samples {
 public:
  struct Sample {
    std::vector<int64_t> inputs, labels;
  };
  /// `source`: settings of the documents.
  Listed(std::vector<Sample> samples, const SourceOptions& source) : samples_(std::move(samples)), source_(source) {}

  std::vector<int64_t> read(int64_t g, int64_t* inputs, int64_t* labels) const override {
    const Sample& sample = samples_.at(static_cast<size_t>(g));
    std::ranges::copy(sample.inputs, inputs);
    std::ranges::copy(sample.labels, labels);
    if (!source_.documents) return {};
    const int64_t length = static_cast<int64_t>(sample.inputs.size());
    return divide_sample(find_documents(inputs, length, *source_.documents), length,
                         source_.boundaries_count ? nullptr : labels);
  }

 private:
  std::vector<Sample> samples_;
  SourceOptions source_;
};

/// Four samples: lengths of their documents. Only in the second sample a separator ends the last document.
const std::vector<std::vector<int64_t>> kLengths = {{5, 1, 1, 9, 8}, {12, 12}, {24}, {1, 2, 21}};

Listed::Sample part_of(const std::vector<int64_t>& tokens, int64_t begin, int64_t length) {
  const auto first = tokens.begin() + begin;
  return {{first, first + length}, {first + 1, first + length + 1}};
}

/// Returns S + 1 tokens for each sample.
std::vector<std::vector<int64_t>> packed_tokens() {
  std::mt19937_64 random(3);
  std::vector<std::vector<int64_t>> all;
  for (const std::vector<int64_t>& lengths : kLengths) {
    std::vector<int64_t>& tokens = all.emplace_back();
    for (int64_t i = 0; i <= kS; ++i) tokens.push_back(kEnd + 1 + static_cast<int64_t>(random() % 40));
    int64_t end = 0;
    for (const int64_t length : lengths) {
      end += length;
      if (end < kS || all.size() == 2) tokens[static_cast<size_t>(end - 1)] = kEnd;
    }
  }
  return all;
}

Listed packed_samples(const SourceOptions& source) {
  std::vector<Listed::Sample> samples;
  for (const std::vector<int64_t>& tokens : packed_tokens()) samples.push_back(part_of(tokens, 0, kS));
  return Listed(std::move(samples), source);
}

/// Returns the settings of the packed samples.
SourceOptions packed(bool boundaries_count) {
  SourceOptions source;
  source.documents = kEnd;
  source.boundaries_count = boundaries_count;
  return source;
}

TrainingOptions options_for(const std::string& family, int64_t sequence_length, int64_t num_samples) {
  TrainingOptions options = small_model();
  options.shape.family = family;
  options.shape.intermediate_size = 40;
  options.shape.vocab_size = kVocabulary;
  options.shape.initializer_range = 0.1;
  options.batch = {sequence_length, num_samples, std::min<int64_t>(num_samples, 2)};
  options.precision = precision_in(at::kDouble);
  options.clip_norm = 0;
  options.optimizer.name = "sgd";
  return options;
}

/// Returns options for the packed samples, two at a time.
TrainingOptions packed_options(const std::string& family) {
  TrainingOptions options = options_for(family, kS, 4);
  options.has_documents = true;
  return options;
}

DeviceMesh one_rank() {
  return DeviceMesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group());
}

DeviceMesh mesh_of_four(int rank) {
  std::vector<int64_t> ranks(4);
  std::iota(ranks.begin(), ranks.end(), 0);
  const Group world(dry_run_backend(rank, 4), "world", ranks, "rank " + std::to_string(rank));
  return DeviceMesh(MeshLayout({{"dp", 1}, {"cp", 2}, {"tp", 2}}), world);
}

struct Result {
  double loss = 0;  ///< sum over counted tokens, divided by `num_counted`
  std::map<std::string, at::Tensor> gradients;
};

/// Adds the results of the first step from the initial weights to `result`.
void add_step(Result& result, const TrainingOptions& options, const Samples& samples, int64_t num_counted) {
  const DeviceMesh mesh = one_rank();
  TransformerTrainer trainer(options, mesh, at::kCPU);
  const StepBatch batch = read_step(samples, options.batch, mesh, trainer.layout(), 0);
  result.loss += trainer.step(batch, num_counted, {0}).loss.item<double>();
  for (const Parameter* parameter : trainer.model().parameters()) {
    at::Tensor& sum = result.gradients[parameter->name];
    sum = sum.defined() ? sum + parameter->tensor.grad() : parameter->tensor.grad().clone();
  }
}

/// Computes each document as a separate sequence.
Result one_by_one(const std::string& family, bool boundaries_count, int64_t num_counted) {
  Result result;
  const std::vector<std::vector<int64_t>> tokens = packed_tokens();
  for (size_t row = 0; row < tokens.size(); ++row) {
    int64_t begin = 0;
    for (const int64_t length : kLengths[row]) {
      Listed::Sample document = part_of(tokens[row], begin, length);
      if (!boundaries_count && document.inputs.back() == kEnd) document.labels.back() = kIgnoredLabel;
      add_step(result, options_for(family, length, 1), Listed({document}, {}), num_counted);
      begin += length;
    }
  }
  return result;
}

double largest_difference(const Result& result, const Result& wanted) {
  double worst = std::abs(result.loss - wanted.loss) / wanted.loss;
  for (const auto& [name, gradient] : wanted.gradients) {
    const at::Tensor difference = (result.gradients.at(name) - gradient).abs().max() / gradient.abs().max();
    worst = std::max(worst, difference.item<double>());
  }
  return worst;
}

TEST(PackedDocuments, ComputeWhatEachComputesAlone) {
  const int64_t num_boundaries = 8;  // separators among the inputs
  for (const char* family : {"llama", "qwen3"}) {
    for (const bool counted : {true, false}) {
      const TrainingOptions options = packed_options(family);
      const Listed samples = packed_samples(packed(counted));
      const int64_t num_counted = 4 * kS - (counted ? 0 : num_boundaries);
      EXPECT_EQ(read_step(samples, options.batch, one_rank(), SequenceLayout::unsharded(kS), 0).num_counted,
                num_counted);
      Result together, undivided;
      add_step(together, options, samples, num_counted);
      const Result wanted = one_by_one(family, counted, num_counted);
      EXPECT_LE(largest_difference(together, wanted), 1e-10) << family << (counted ? " counted" : " ignored");

      add_step(undivided, options_for(family, kS, 4), packed_samples({}), num_counted);
      EXPECT_GT(largest_difference(undivided, wanted), 1e-3) << "attention across documents goes unnoticed";
    }
  }
}

TEST(PackedDocuments, AnglesBeginAnewInEach) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    TrainingOptions options = packed_options("llama");
    options.precision = precision_in(dtype);
    const DeviceMesh mesh = one_rank();
    const Sequences sequences(options, mesh, at::kCPU);
    const StepBatch batch =
        read_step(packed_samples(packed(/*boundaries_count=*/true)), options.batch, mesh, sequences.layout(), 0);
    for (int64_t row = 0; row < 4; ++row) {
      const Sequence sequence = sequences.of(batch.micro_batches[static_cast<size_t>(row / 2)].documents);
      ASSERT_EQ(sequence.rotary.cos.sizes(), (at::IntArrayRef{2, kS, 1, 4}));
      int64_t begin = 0;
      for (const int64_t length : kLengths[static_cast<size_t>(row)]) {
        const Rotary alone =
            make_rotary(options.shape, at::arange(length), sequence.rotary.cos.scalar_type(), at::kCPU);
        EXPECT_TRUE(at::equal(sequence.rotary.cos[row % 2].narrow(0, begin, length), alone.cos)) << row << " " << begin;
        EXPECT_TRUE(at::equal(sequence.rotary.sin[row % 2].narrow(0, begin, length), alone.sin)) << row << " " << begin;
        begin += length;
      }
    }
  }
}

TEST(PackedDocuments, AnglesAreMadeOnceWithoutSeparators) {
  const TrainingOptions options = packed_options("llama");
  const DeviceMesh mesh = one_rank();
  const Sequences sequences(options, mesh, at::kCPU);
  EXPECT_TRUE(sequences.of({}).layout.documents().empty());
  EXPECT_EQ(sequences.of({}).rotary.cos.data_ptr(), sequences.of({}).rotary.cos.data_ptr());
}

TEST(PackedDocuments, PeersFindTheSameOnes) {
  const Listed samples = packed_samples(packed(/*boundaries_count=*/false));
  for (const SequenceLayout::Kind layout : {SequenceLayout::Kind::Contiguous, SequenceLayout::Kind::ZigZag}) {
    TrainingOptions options = packed_options("llama");
    options.context.layout = layout;
    const StepBatch full = read_step(samples, options.batch, one_rank(), SequenceLayout::unsharded(kS), 0);
    int64_t num_counted = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const DeviceMesh mesh = mesh_of_four(rank);
      const Sequences sequences(options, mesh, at::kCPU);
      const StepBatch batch = read_step(samples, options.batch, mesh, sequences.layout(), 0);
      if (mesh.coordinate("tp") == 0) num_counted += batch.num_counted;
      for (size_t i = 0; i < 2; ++i) {
        const MicroBatch& micro_batch = batch.micro_batches[i];
        EXPECT_EQ(micro_batch.documents, full.micro_batches[i].documents);
        const at::Tensor labels = full.micro_batches[i].labels.view({2, kS});
        EXPECT_TRUE(at::equal(micro_batch.labels, sequences.layout().take(labels, 1).reshape(-1)));
        const at::Tensor positions = document_positions(micro_batch.documents, kS);
        const Rotary wanted = make_rotary(options.shape, sequences.layout().take(positions, 1), at::kDouble, at::kCPU);
        EXPECT_TRUE(at::equal(sequences.of(micro_batch.documents).rotary.cos, wanted.cos)) << rank;
      }
    }
    EXPECT_EQ(num_counted, full.num_counted) << "a boundary at a cut is counted once";
  }
}

TEST(PackedDocuments, AStepOfSeparatorsAloneCountsNothing) {
  const std::vector<int64_t> separators(kS, kEnd);
  TrainingOptions options = packed_options("llama");
  options.batch.global_batch = options.batch.micro_batch = 1;
  const DeviceMesh mesh = one_rank();
  const TransformerTrainer trainer(options, mesh, at::kCPU);
  const StepBatch batch = read_step(Listed({{separators, separators}}, packed(/*boundaries_count=*/false)),
                                    options.batch, mesh, trainer.layout(), 0);
  EXPECT_EQ(batch.num_counted, 0);
  EXPECT_THROW(trainer.count_tokens(batch), std::exception);
}

}  // namespace
}  // namespace meshtrain
