#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace meshtrain {

/// A file of TensorBoard's events: records of length, CRC, a protobuf message Event, CRC, each written at once. One
/// rank writes it. Where it cannot be written, one warning says so and the run goes on.
class TensorBoardFile {
 public:
  /// Makes `folder` and a new file in it. `first_step`: what earlier files of the folder say of this step and later
  /// ones no longer holds, as readers are told.
  TensorBoardFile(const std::filesystem::path& folder, int64_t first_step);
  ~TensorBoardFile();
  TensorBoardFile(const TensorBoardFile&) = delete;
  TensorBoardFile& operator=(const TensorBoardFile&) = delete;

  /// Appends the numbers of a line of metrics.jsonl, which has `step` and `time`: "train/loss", and those of objects
  /// within it under their names, "seconds/collectives/dp/exposed". What is null is left out.
  void append(const nlohmann::ordered_json& metrics);

 private:
  void write(const std::string& event);
  void warn(const std::string& problem);

  std::filesystem::path file_;
  int descriptor_ = -1;
};

/// Returns `data` as a record of such a file.
std::string as_record(const std::string& data);

}  // namespace meshtrain
