#include "runtime/program/report/metrics_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace meshtrain {
namespace {

constexpr size_t kMostPaths = 512;
constexpr size_t kLongestPath = 200;
constexpr double kNotFinite = std::numeric_limits<double>::quiet_NaN();

/// A line of metrics, flat. The parser's events fill it without a tree of values: a run may have a million lines.
struct MetricsLine final : nlohmann::json_sax<nlohmann::json> {
  std::vector<std::pair<std::string, double>> numbers;
  int64_t step = -1;
  bool is_object = false;
  bool skipped = false;
  std::string non_finite, outlier;

  bool null() override { return number(kNotFinite); }
  bool boolean(bool value) override {
    if (path == "skipped") skipped = value;
    return leave();
  }
  bool number_integer(number_integer_t value) override {
    if (path == "step") step = value;
    return number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (path == "step") step = value <= static_cast<uint64_t>(Series::kMostSteps) ? static_cast<int64_t>(value) : -1;
    return number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool string(string_t& value) override {
    if (path == "no_label") non_finite = "none: no label of the step counts";
    if (path == "non_finite") non_finite = std::move(value);
    if (path == "outlier") outlier = std::move(value);
    return leave();
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return enter('{'); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return enter('['); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    begins.push_back(path.size());
    if (!path.empty()) path += '.';
    path += name;
    return path.size() <= kLongestPath;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool number(double value) {
    if (num_lists == 0) numbers.emplace_back(path, value);
    return leave();
  }
  bool enter(char kind) {
    if (around.empty()) is_object = kind == '{';
    around += kind;
    if (kind == '[') ++num_lists;
    return is_object;
  }
  bool close() {
    if (around.back() == '[') --num_lists;
    around.pop_back();
    return leave();
  }
  /// Leaves the value of a key. Items of a list have none.
  bool leave() {
    if (!around.empty() && around.back() == '{') {
      path.resize(begins.back());
      begins.pop_back();
    }
    return true;
  }

  std::string path;
  std::vector<size_t> begins;  // lengths of `path` before each key
  std::string around;          // the objects and lists around a value, outermost first: { or [
  int64_t num_lists = 0;       // in `around`
};

}  // namespace

void MetricsReader::add(std::string_view line) {
  MetricsLine read;
  const bool is_json = nlohmann::json::sax_parse(line.begin(), line.end(), &read);
  if (!is_json || !read.is_object || read.step < 0 || read.step > Series::kMostSteps) {
    ++num_damaged_;
    return;
  }
  last_step_ = std::max(last_step_, read.step);
  for (const auto& [path, value] : read.numbers) {
    auto found = series_.find(path);
    if (found == series_.end()) {
      if (path == "step" || series_.size() >= kMostPaths) continue;
      found = series_.emplace(path, Series()).first;
    }
    found->second.add(read.step, value);
  }
  if (!read.skipped) return;
  ++num_skipped_;
  if (!read.outlier.empty()) ++num_outliers_;
  if (num_skipped_ > kMostSkipped) return;
  skipped_.push_back({read.step, std::move(read.non_finite), std::move(read.outlier)});
}

const Series& MetricsReader::operator[](std::string_view path) const {
  static const Series none;
  const auto found = series_.find(path);
  return found == series_.end() ? none : found->second;
}

std::vector<std::string> MetricsReader::between(std::string_view before, std::string_view after) const {
  std::vector<std::string> parts;
  for (auto at = series_.lower_bound(before); at != series_.end() && at->first.starts_with(before); ++at) {
    const std::string& path = at->first;
    if (path.size() <= before.size() + after.size() || !path.ends_with(after)) continue;
    std::string part = path.substr(before.size(), path.size() - before.size() - after.size());
    if (part.find('.') == std::string::npos && at->second.has_values()) parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace meshtrain
