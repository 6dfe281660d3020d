#include "runtime/program/published/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "mesh/base/error.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/size_text.h"
#include "runtime/program/forecast/machine.h"
#include "runtime/program/published/known_shapes.h"

namespace meshtrain {
namespace {

using Cells = std::vector<std::string>;

constexpr int64_t kMostRanks = 16384;
constexpr int64_t kMostTokens = 1 << 26;

std::string listed(const Cells& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// Returns the cells of a line. A cell in double quotes may have commas, and a double quote as two.
Cells cells_of(std::string_view line, const std::string& location) {
  Cells cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  if (quoted) throw InputError(location + ": a double quote is not closed");
  return cells;
}

const Cells kColumns = {"id",       "source", "model",    "system",      "gpus",         "dp",        "sharding",
                        "tp",       "cp",     "sequence", "micro_batch", "global_batch", "precision", "checkpointing",
                        "compiled", "value",  "unit",     "memory_gib"};

/// The cells of a row, by the names of their columns.
class TableRow {
 public:
  TableRow(std::string location, const Cells& columns, Cells cells) : location_(std::move(location)) {
    if (cells.size() != columns.size()) {
      throw InputError(location_ + ": " + counted(cells.size(), "cell") + ", and the first line names " +
                       counted(columns.size(), "column"));
    }
    for (size_t i = 0; i < cells.size(); ++i) cells_[columns[i]] = std::move(cells[i]);
  }

  [[noreturn]] void refuse(const std::string& column, const std::string& expected) const {
    throw InputError(location_ + ": column " + column + ": \"" + cells_.at(column) + "\": expected " + expected);
  }
  const std::string& location() const { return location_; }
  const std::string& text(const std::string& column) const { return cells_.at(column); }
  std::string required(const std::string& column) const {
    if (text(column).empty()) refuse(column, "a text");
    return text(column);
  }
  std::string word(const std::string& column, const Cells& words) const {
    if (std::ranges::find(words, text(column)) == words.end()) refuse(column, "one of " + listed(words));
    return text(column);
  }
  std::optional<double> number(const std::string& column) const {
    const std::string& cell = text(column);
    if (cell.empty()) return std::nullopt;
    double number = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
    if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(number) || number <= 0) {
      refuse(column, "a number above 0, or nothing");
    }
    return number;
  }
  std::optional<int64_t> count(const std::string& column, int64_t most) const {
    return count(column, text(column), most);
  }
  std::optional<int64_t> count(const std::string& column, std::string_view cell, int64_t most) const {
    if (cell.empty()) return std::nullopt;
    int64_t number = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
    if (error != std::errc() || end != cell.data() + cell.size() || number < 1 || number > most) {
      refuse(column, "a whole number from 1 to " + std::to_string(most));
    }
    return number;
  }
  int64_t required_count(const std::string& column, int64_t most) const {
    const std::optional<int64_t> number = count(column, most);
    if (!number) refuse(column, "a whole number from 1 to " + std::to_string(most));
    return *number;
  }

 private:
  std::string location_;
  std::map<std::string, std::string> cells_;
};

void read_sharding(PublishedRun& run, const TableRow& row) {
  const Cells modes = {"no_shard", "shard_optimizer", "shard_grad_op", "full_shard", "hybrid_shard"};
  const std::string& cell = row.text("sharding");
  const size_t blank = cell.find(' ');
  run.sharding = cell.substr(0, blank);
  const std::string expected =
      "one of " + listed(modes) + "; hybrid_shard may have the ranks that share a copy after it";
  if (std::ranges::find(modes, run.sharding) == modes.end()) row.refuse("sharding", expected);
  if (blank == std::string::npos) return;
  if (run.sharding != "hybrid_shard") row.refuse("sharding", expected);
  run.shard_size = row.count("sharding", std::string_view(cell).substr(blank + 1), kMostRanks);
}

void read_memory(PublishedRun& run, const TableRow& row) {
  const std::string& cell = row.text("memory_gib");
  if (cell == "fits" || cell == "out of memory") {
    run.fits = cell == "fits";
  } else if (!cell.empty() && (cell[0] < '0' || cell[0] > '9')) {
    row.refuse("memory_gib", "a number of GiB, fits, out of memory, or nothing");
  } else {
    run.memory_gib = row.number("memory_gib");
  }
}

PublishedRun run_of(const TableRow& row) {
  PublishedRun run;
  run.location = row.location();
  run.id = row.required("id");
  run.source = row.required("source");
  run.model = row.text("model");
  if (!known_shape(run.model)) {
    row.refuse("model",
               "one of " + listed(known_shapes()) + "; with another number of layers as in llama3-70b-12-layers");
  }
  run.shape = *known_shape(run.model);
  run.system = row.word("system", machine_presets());
  run.gpus = row.required_count("gpus", kMostRanks);
  run.dp = row.required_count("dp", kMostRanks);
  run.tp = row.required_count("tp", kMostRanks);
  run.cp = row.required_count("cp", kMostRanks);
  if (run.dp * run.tp * run.cp != run.gpus) {
    row.refuse("gpus", "dp x tp x cp = " + std::to_string(run.dp * run.tp * run.cp));
  }
  read_sharding(run, row);
  run.sequence = row.required_count("sequence", kMostTokens);
  run.micro_batch = row.count("micro_batch", kMostTokens);
  run.global_batch = row.count("global_batch", kMostTokens);
  if (run.global_batch && *run.global_batch % (run.dp * run.micro_batch.value_or(1)) != 0) {
    row.refuse("global_batch",
               "a multiple of dp x micro_batch = " + std::to_string(run.dp * run.micro_batch.value_or(1)));
  }
  run.precision = row.word("precision", {"bf16_mixed", "fp8", "bf16", "fp16_mixed", "fp32"});
  run.checkpointing = row.word("checkpointing", {"none", "selective", "full"});
  run.compiled = row.word("compiled", {"no", "yes", "fused"});
  run.value = row.number("value");
  if (run.value) run.unit = row.word("unit", {"tok/s/gpu", "s/step", "TFLOP/s full", "TFLOP/s causal"});
  read_memory(run, row);
  return run;
}

}  // namespace

std::vector<PublishedRun> read_published_table(const std::filesystem::path& file) {
  const std::string text = std::string(read_all(file).text());
  Cells columns;
  std::vector<PublishedRun> runs;
  std::set<std::string> ids;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    const std::string location = file.string() + ":" + std::to_string(++number);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    Cells cells = cells_of(line, location);
    if (!columns.empty()) {
      runs.push_back(run_of(TableRow(location, columns, std::move(cells))));
      if (!ids.insert(runs.back().id).second)
        throw InputError(location + ": column id: " + runs.back().id + " is duplicated");
      continue;
    }
    columns = std::move(cells);
    for (const std::string& column : columns) {
      if (std::ranges::count(columns, column) > 1) throw InputError(location + ": column " + column + " is duplicated");
      if (std::ranges::find(kColumns, column) == kColumns.end()) {
        throw InputError(location + ": unknown column \"" + column + "\": the columns are " + listed(kColumns));
      }
    }
    for (const std::string& column : kColumns) {
      if (std::ranges::find(columns, column) == columns.end())
        throw InputError(location + ": missing column " + column);
    }
  }
  if (runs.empty()) throw InputError(file.string() + ": the table has no rows");
  return runs;
}

}  // namespace meshtrain
