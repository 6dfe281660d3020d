#include "runtime/program/telemetry/tensorboard.h"

#include <fcntl.h>
#include <isa-l/crc.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <protozero/pbf_writer.hpp>
#include <system_error>
#include <utility>

#include "mesh/base/log.h"

namespace meshtrain {
namespace {

using nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "records are little-endian");

// Numbers of fields in tensorflow's event.proto and summary.proto.
struct Event {
  static constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
};
constexpr int kSessionStatus = 1, kSessionStart = 1;
constexpr int kSummaryValue = 1, kValueTag = 1, kValueNumber = 2;

/// Returns the CRC-32C of `data`, rotated and shifted as TFRecord has it, so that a CRC over CRCs is no problem.
uint32_t masked_crc(std::string data) {
  auto* const bytes = reinterpret_cast<unsigned char*>(data.data());
  const uint32_t crc = ~crc32_iscsi(bytes, static_cast<int>(data.size()), ~0U);
  return std::rotr(crc, 15) + 0xA282EAD8;
}

template <class Number>
std::string bytes_of(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof number);
}

double time_of_day() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void add_numbers(const std::string& path, const ordered_json& object, protozero::pbf_writer& summary) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      add_numbers(path + key + "/", value, summary);
    } else if (value.is_number() || value.is_boolean()) {
      const bool is_about_training = path.empty();
      if (is_about_training && (key == "step" || key == "time")) continue;
      protozero::pbf_writer entry(summary, kSummaryValue);
      entry.add_string(kValueTag, (is_about_training ? "train/" : path) + key);
      entry.add_float(kValueNumber, value.is_boolean() ? (value.get<bool>() ? 1.0F : 0.0F) : value.get<float>());
    }
  }
}

std::string host() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

std::string as_record(const std::string& data) {
  const std::string length = bytes_of(static_cast<uint64_t>(data.size()));
  return length + bytes_of(masked_crc(length)) + data + bytes_of(masked_crc(data));
}

TensorBoardFile::TensorBoardFile(const std::filesystem::path& folder, int64_t first_step) {
  const double now = time_of_day();
  // Readers take files by their names, which begin like this, and read them in the order of these.
  file_ = folder / ("events.out.tfevents." + std::to_string(std::llround(now * 1000)) + "." + host() + "." +
                    std::to_string(getpid()));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  descriptor_ = open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) warn(std::strerror(errno));
  std::string version, beginning;
  protozero::pbf_writer event(version);
  event.add_double(Event::kWallTime, now);
  event.add_string(Event::kFileVersion, "brain.Event:2");
  write(version);
  protozero::pbf_writer start(beginning);
  start.add_double(Event::kWallTime, now);
  start.add_int64(Event::kStep, first_step);
  {
    protozero::pbf_writer session(start, Event::kSessionLog);
    session.add_enum(kSessionStatus, kSessionStart);
  }
  write(beginning);
}

TensorBoardFile::~TensorBoardFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void TensorBoardFile::append(const ordered_json& metrics) {
  if (descriptor_ < 0) return;
  std::string data;
  protozero::pbf_writer event(data);
  event.add_double(Event::kWallTime, metrics.value("time", time_of_day()));
  event.add_int64(Event::kStep, metrics.value("step", int64_t{0}));
  {
    protozero::pbf_writer summary(event, Event::kSummary);
    add_numbers("", metrics, summary);
  }
  write(data);
}

void TensorBoardFile::write(const std::string& event) {
  if (descriptor_ < 0) return;
  const std::string record = as_record(event);
  const ssize_t written = ::write(descriptor_, record.data(), record.size());
  if (written == static_cast<ssize_t>(record.size())) return;
  warn(written < 0 ? std::strerror(errno) : "it was written in part");
  close(std::exchange(descriptor_, -1));  // readers stop at an incomplete record
}

void TensorBoardFile::warn(const std::string& problem) {
  log_warning("train.tensorboard: " + file_.string() + " cannot be written: " + problem +
              ": no further events are written for TensorBoard");
}

}  // namespace meshtrain
