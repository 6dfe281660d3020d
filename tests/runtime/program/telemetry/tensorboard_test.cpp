// Events for TensorBoard: their framing, their names, and what becomes of a file that cannot be written.

#include "runtime/program/telemetry/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <protozero/pbf_reader.hpp>

#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::ScratchFolder;

uint32_t word_at(const std::string& bytes, size_t offset) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data() + offset, sizeof word);
  return word;
}

TEST(TensorBoard, ARecordHasItsLengthAndMaskedCrcs) {
  const std::string record = as_record("123456789");
  ASSERT_EQ(record.size(), 8u + 4 + 9 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x09\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 9), "123456789");
  // CRC-32C of "123456789" is 0xE3069283 (RFC 3720); masked: rotated right by 15, plus 0xA282EAD8.
  constexpr uint32_t kCrc = 0xE3069283;
  EXPECT_EQ(word_at(record, 21), ((kCrc >> 15) | (kCrc << 17)) + 0xA282EAD8);
}

/// Returns the events of the one file of a folder.
std::vector<std::string> events_in(const std::filesystem::path& folder) {
  std::vector<std::string> events;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string bytes = testing::content(entry.path());
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = word_at(bytes, at);
      events.push_back(bytes.substr(at + 12, length));
      EXPECT_EQ(bytes.substr(at, length + 16), as_record(events.back()));
      at += length + 16;
    }
  }
  return events;
}

TEST(TensorBoard, EachNumberOfALineIsAValueUnderItsPath) {
  const ScratchFolder folder;
  {
    TensorBoardFile file(folder.path() / "tb", 7);
    file.append({{"step", 7},
                 {"time", 1000.5},
                 {"loss", 2.5},
                 {"mfu", nullptr},
                 {"skipped", true},
                 {"non_finite", "a name"},
                 {"seconds", {{"collectives", {{"dp", {{"total", 0.25}}}}}}}});
  }
  const std::vector<std::string> events = events_in(folder.path() / "tb");
  ASSERT_EQ(events.size(), 3u) << "version, beginning, step";
  std::map<std::string, float> values;
  protozero::pbf_reader event(events[2]);
  while (event.next()) {
    if (event.tag() == 1) {
      EXPECT_EQ(event.get_double(), 1000.5);
    } else if (event.tag() == 2) {
      EXPECT_EQ(event.get_int64(), 7);
    } else {
      protozero::pbf_reader summary = event.get_message();
      while (summary.next()) {
        protozero::pbf_reader value = summary.get_message();
        std::string tag;
        while (value.next()) {
          if (value.tag() == 1) {
            tag = value.get_string();
          } else {
            values[tag] = value.get_float();
          }
        }
      }
    }
  }
  const std::map<std::string, float> expected = {
      {"train/loss", 2.5F}, {"train/skipped", 1.0F}, {"seconds/collectives/dp/total", 0.25F}};
  EXPECT_EQ(values, expected);
}

TEST(TensorBoard, AFileThatCannotBeWrittenEndsNothing) {
  const ScratchFolder folder;
  testing::write_file(folder.path() / "tb", "a file in the place of the folder");
  TensorBoardFile file(folder.path() / "tb", 1);
  file.append({{"step", 1}, {"loss", 1.0}});
  file.append({{"step", 2}, {"loss", 1.0}});
}

}  // namespace
}  // namespace meshtrain
