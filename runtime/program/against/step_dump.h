#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/training/data/documents.h"
#include "runtime/training/model/shape.h"
#include "runtime/training/safetensors/folder.h"

namespace meshtrain {

/// The settings with which a program's optimizer updates one parameter.
struct DumpedUpdate {
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  ///< of AdamW and Adam
  double weight_decay = 0;
};

/// One training step of another program, as tools/dump_step.py writes it: a folder with step.json, batch.safetensors,
/// and before/, gradients/ and after/, which have the tensors of a Hugging Face folder. Gradients and weights after the
/// step may be those of some layers only, and of large tensors a sample, the elements whose numbers sample/ has.
class StepDump {
 public:
  /// Reads everything but the tensors of the model. Throws InputError that names what is missing, contradictory or not
  /// supported.
  explicit StepDump(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path weights() const { return folder_ / "before"; }
  const ModelShape& shape() const { return shape_; }
  /// Returns the sizes of the program's mesh by axis, as it was told.
  const std::map<std::string, int64_t>& mesh() const { return mesh_; }
  double loss() const { return loss_; }
  const std::optional<double>& grad_norm() const { return grad_norm_; }
  double clip_norm() const { return clip_norm_; }  ///< 0: no clipping
  const std::string& optimizer() const { return optimizer_; }
  /// Returns the number of updates after the step; 1: the step was the optimizer's first; 0: it made none.
  int64_t num_updates() const { return num_updates_; }

  const at::Tensor& inputs() const { return inputs_; }  ///< int64 [samples, S]
  const at::Tensor& labels() const { return labels_; }  ///< int64 [samples, S]: the token after each, or kIgnoredLabel
  const DocumentStarts& documents() const { return documents_; }  ///< of each sample; empty: each is one document
  const std::vector<int64_t>& ranks() const { return ranks_; }    ///< data rank of each sample
  const std::vector<int64_t>& micro_batches() const { return micro_batches_; }  ///< of each sample, on its rank

  /// Returns true when the dump has every element of every gradient, unless the program has none.
  bool is_complete() const { return layers_.empty() && !sample_; }
  /// Says which gradients and updates were left out; empty: none.
  std::string left_out() const;
  /// Returns true when the step's gradient and update of a parameter were to be dumped.
  bool covers(const std::string& parameter) const;
  /// Returns how many elements of it were to be dumped.
  int64_t num_elements(const std::string& parameter, const std::vector<int64_t>& shape) const;
  /// Returns the elements of a parameter's `values`, [shape], that were to be dumped: all, or the sample, [n].
  at::Tensor elements(const std::string& parameter, const at::Tensor& values) const;

  /// Return a parameter's elements(), fp64; undefined when the dump does not have it.
  at::Tensor before(const std::string& parameter, const std::vector<int64_t>& shape) const;
  at::Tensor gradient(const std::string& parameter, const std::vector<int64_t>& shape) const;
  at::Tensor after(const std::string& parameter, const std::vector<int64_t>& shape) const;
  /// Returns the dtype of the gradients.
  at::ScalarType gradient_dtype() const;
  /// Returns the dtype of the weights after the step.
  at::ScalarType weight_dtype() const;
  /// Returns the settings of a parameter's update; nullopt when the optimizer does not have the parameter.
  std::optional<DumpedUpdate> update(const std::string& parameter, const std::vector<int64_t>& shape) const;
  /// Returns the largest weight decay of the optimizer's groups.
  double largest_decay() const;

 private:
  void read_step();
  void read_batch();
  void read_documents(const SafetensorsFile& file);
  /// Returns the sample of a parameter as numbers of its elements, and as numbers in the sample of the folder's tensor;
  /// both undefined when all elements are dumped.
  std::pair<at::Tensor, at::Tensor> sample(const std::string& parameter, const std::vector<int64_t>& shape) const;
  at::Tensor read(const SafetensorsFolder& from, const std::string& parameter, const std::vector<int64_t>& shape) const;

  std::filesystem::path folder_;
  ModelShape shape_;
  SafetensorsFolder before_, gradients_, after_;
  std::optional<SafetensorsFolder> sample_;  // int64, by the names of the folder's tensors
  std::vector<int64_t> layers_;              // whose gradients were dumped; empty: all
  std::map<std::string, int64_t> mesh_;
  double loss_ = 0, clip_norm_ = 0;
  std::optional<double> grad_norm_;
  std::string optimizer_;
  int64_t num_updates_ = 0;
  std::map<std::string, DumpedUpdate> updates_;  // by the names of the folder's tensors
  at::Tensor inputs_, labels_;
  DocumentStarts documents_;
  std::vector<int64_t> ranks_, micro_batches_;
};

}  // namespace meshtrain
