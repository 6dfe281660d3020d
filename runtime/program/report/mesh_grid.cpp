#include "runtime/program/report/mesh_grid.h"

#include <algorithm>
#include <map>
#include <set>

#include "mesh/base/size_text.h"
#include "runtime/program/report/chart.h"
#include "runtime/program/report/html.h"

namespace meshtrain {
namespace {

constexpr int64_t kMostDrawn = 4096, kMostNumbered = 1024;
constexpr size_t kMostHostsNamed = 16;
constexpr int64_t kLabelWidth = 56, kLabelHeight = 18, kGap = 4;

/// The grid's geometry: the outermost axis goes down, the others across, with a gap wherever a coordinate but the
/// innermost changes.
class Grid {
 public:
  Grid(const std::vector<std::pair<std::string, int64_t>>& axes, const std::vector<std::string>& hosts)
      : axes_(axes), hosts_(hosts) {
    for (const auto& [axis, size] : axes_) num_ranks_ *= size;
    if (static_cast<int64_t>(hosts_.size()) != num_ranks_) hosts_.clear();
    for (const std::string& host : hosts_) host_numbers_.try_emplace(host, static_cast<int>(host_numbers_.size()));
    num_across_ = num_ranks_ / axes_.front().second;
    num_rows_ = std::max<int64_t>(std::min(axes_.front().second, kMostDrawn / num_across_), 1);
    num_columns_ = std::min(num_across_, kMostDrawn);
    is_numbered_ = num_rows_ * num_columns_ <= kMostNumbered;
    cell_width_ = is_numbered_ ? 36 : 12;
    cell_height_ = is_numbered_ ? 26 : 12;
  }

  std::string html() const {
    const int64_t header = kLabelHeight * static_cast<int64_t>(axes_.size() - 1);
    const int64_t width = x_of(num_columns_ - 1) + cell_width_ + 1;
    const int64_t height = header + num_rows_ * (cell_height_ + kGap);
    const std::string w = std::to_string(width), h = std::to_string(height);
    std::string html = "<div class=\"scroll\"><svg class=\"mesh\" width=\"" + w + "\" height=\"" + h +
                       "\" viewBox=\"0 0 " + w + " " + h + "\" role=\"img\" aria-label=\"mesh\">\n";
    for (size_t axis = 1; axis < axes_.size(); ++axis) html += column_labels(axis);
    for (int64_t row = 0; row < num_rows_; ++row) {
      const int64_t y = header + row * (cell_height_ + kGap);
      html += text(0, y + cell_height_ / 2 + 4, axes_.front().first + " " + std::to_string(row), "");
      for (int64_t column = 0; column < num_columns_; ++column) html += cell(row * num_across_ + column, column, y);
    }
    html += "</svg></div>\n" + host_legend();
    const int64_t num_drawn = num_rows_ * num_columns_;
    if (num_drawn < num_ranks_) {
      html +=
          "<p class=\"note\">" + counted(num_drawn, "rank") + " of " + with_separators(num_ranks_) + " are drawn</p>\n";
    }
    return html + groups();
  }

 private:
  /// Returns the coordinate of a rank on an axis; the last axis has neighbouring ranks.
  int64_t coordinate(int64_t rank, size_t axis) const { return rank / inner(axis) % axes_[axis].second; }
  /// Returns the number of ranks between two neighbours on an axis.
  int64_t inner(size_t axis) const {
    int64_t ranks = 1;
    for (size_t i = axis + 1; i < axes_.size(); ++i) ranks *= axes_[i].second;
    return ranks;
  }
  int64_t x_of(int64_t column) const {
    const int64_t block = axes_.size() > 2 ? axes_.back().second : num_across_;
    return kLabelWidth + column * (cell_width_ + 2) + column / std::max<int64_t>(block, 1) * kGap * 2;
  }

  static std::string text(int64_t x, int64_t y, const std::string& words, const std::string& attributes) {
    return "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\"" + attributes + ">" + escaped(words) +
           "</text>";
  }

  /// Returns "cp 0", "cp 1" over the columns of each of its coordinates.
  std::string column_labels(size_t axis) const {
    const int64_t every = inner(axis), y = kLabelHeight * static_cast<int64_t>(axis) - 5;
    const int64_t room = x_of(every) - x_of(0);
    const bool has_room = room >= 36;
    std::string html;
    for (int64_t column = 0; column < num_columns_; column += every) {
      if (!has_room && column > 0) break;
      html += text(x_of(column), y, axes_[axis].first + " " + std::to_string(coordinate(column, axis)), "");
    }
    return html + "\n";
  }

  std::string cell(int64_t rank, int64_t column, int64_t y) const {
    std::string what = "rank " + std::to_string(rank) + ":";
    for (size_t axis = 0; axis < axes_.size(); ++axis) {
      what += " " + axes_[axis].first + "=" + std::to_string(coordinate(rank, axis));
    }
    int color = 0;
    if (!hosts_.empty()) {
      const std::string& host = hosts_[static_cast<size_t>(rank)];
      what += ", " + host;
      color = host_numbers_.at(host) % kNumColors;
    }
    const int64_t x = x_of(column);
    return "<g class=\"c" + std::to_string(color) + "\"><title>" + escaped(what) + "</title><rect x=\"" +
           std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" width=\"" + std::to_string(cell_width_) +
           "\" height=\"" + std::to_string(cell_height_) + "\" rx=\"3\"/>" +
           (is_numbered_
                ? text(x + cell_width_ / 2, y + cell_height_ / 2 + 4, std::to_string(rank), " text-anchor=\"middle\"")
                : "") +
           "</g>\n";
  }

  std::string host_legend() const {
    if (hosts_.empty()) return "<p class=\"note\">The run directory does not say which hosts the ranks were on.</p>\n";
    std::vector<std::pair<int, std::string>> named;
    for (const auto& [host, number] : host_numbers_) named.emplace_back(number, host);
    std::sort(named.begin(), named.end());
    std::string html = "<p class=\"legend\">";
    for (const auto& [number, host] : named) {
      if (number == static_cast<int>(kMostHostsNamed)) {
        html += "<span>and " + with_separators(static_cast<int64_t>(named.size() - kMostHostsNamed)) + " more</span>";
        break;
      }
      html += "<span>" + color_key(number % kNumColors) + escaped(host) + "</span> ";
    }
    return html + "</p>\n";
  }

  /// Returns a line an axis: how many groups, of how many ranks, over how many hosts.
  std::string groups() const {
    std::string html = "<div class=\"scroll\"><table><tr><th>axis</th><th>groups</th><th>on hosts</th></tr>\n";
    for (size_t axis = 0; axis < axes_.size(); ++axis) {
      const auto& [name, size] = axes_[axis];
      html += "<tr><td>" + escaped(name) + "</td><td>" +
              (size == 1 ? "each rank alone" : with_separators(num_ranks_ / size) + " of " + counted(size, "rank")) +
              "</td><td>" + (size == 1 ? "" : hosts_of_groups(axis)) + "</td></tr>\n";
    }
    return html + "</table></div>\n";
  }

  std::string hosts_of_groups(size_t axis) const {
    if (hosts_.empty()) return "unknown";
    const int64_t stride = inner(axis), size = axes_[axis].second;
    size_t most = 1;
    int64_t num_across_hosts = 0;
    for (int64_t rank = 0; rank < num_ranks_; ++rank) {
      if (coordinate(rank, axis) != 0) continue;
      std::set<int> on;
      for (int64_t i = 0; i < size; ++i) on.insert(host_numbers_.at(hosts_[static_cast<size_t>(rank + i * stride)]));
      most = std::max(most, on.size());
      num_across_hosts += on.size() > 1 ? 1 : 0;
    }
    if (num_across_hosts == 0) return "each within a host";
    return with_separators(num_across_hosts) + " across hosts, up to " + with_separators(static_cast<int64_t>(most));
  }

  const std::vector<std::pair<std::string, int64_t>>& axes_;
  std::vector<std::string> hosts_;
  std::map<std::string, int> host_numbers_;  // in the order of their first ranks
  int64_t num_ranks_ = 1, num_across_ = 1, num_rows_ = 1, num_columns_ = 1;
  bool is_numbered_ = true;
  int64_t cell_width_ = 0, cell_height_ = 0;
};

}  // namespace

std::string draw_mesh_grid(const std::vector<std::pair<std::string, int64_t>>& axes,
                           const std::vector<std::string>& hosts) {
  return axes.empty() ? "" : Grid(axes, hosts).html();
}

}  // namespace meshtrain
