#include "tools/meshtrain/mesh_picture.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <vector>

#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

constexpr int64_t kFullTable = 32;  // more ranks than this are cut
constexpr int64_t kFirst = 8, kLast = 2;
constexpr size_t kGroupsShown = 8, kRanksShown = 8;

/// "{0, 2, 4, 6}".
std::string set_of(const std::vector<int64_t>& ranks) {
  std::string text = "{";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool cut = ranks.size() > kRanksShown && i == kRanksShown - 2;
    if (cut) i = ranks.size() - 1;
    text += (i == 0 ? "" : ", ") + std::string(cut ? "..., " : "") + std::to_string(ranks[i]);
  }
  return text + "}";
}

class Picture {
 public:
  Picture(const MeshLayout& layout, int64_t ranks_per_host)
      : layout_(layout), ranks_per_host_(ranks_per_host > 0 ? ranks_per_host : layout.size()) {}

  std::string draw() {
    const int64_t hosts = (layout_.size() + ranks_per_host_ - 1) / ranks_per_host_;
    text_ << "mesh " << layout_.describe() << ": " << counted(layout_.size(), "rank") << " on "
          << counted(hosts, "host") << "; outermost axis first, " << layout_.axes().back().name
          << " has neighbouring ranks\n\n";
    table();
    text_ << "\n";
    std::vector<std::string> wide;
    for (const Axis& axis : layout_.axes()) {
      groups({axis.name});
      if (axis.size > 1 && axis.name != kTensorAxis && axis.name != kPipelineAxis) wide.push_back(axis.name);
    }
    if (wide.size() > 1) groups(wide);  // the replicas: what gradients and loss are summed over
    return text_.str();
  }

 private:
  void table() {
    text_ << std::setw(8) << "rank" << std::setw(8) << "host";
    for (const Axis& axis : layout_.axes()) text_ << std::setw(8) << axis.name;
    text_ << "\n";
    for (int64_t rank = 0; rank < layout_.size(); ++rank) {
      if (layout_.size() > kFullTable && rank == kFirst) {
        rank = layout_.size() - kLast;
        text_ << std::setw(8) << "..."
              << "\n";
      }
      text_ << std::setw(8) << rank << std::setw(8) << rank / ranks_per_host_;
      for (const int64_t coordinate : layout_.coordinate(rank)) text_ << std::setw(8) << coordinate;
      text_ << "\n";
    }
  }

  int64_t hosts_of(const std::vector<int64_t>& ranks) const {
    std::vector<int64_t> hosts;
    for (const int64_t rank : ranks) hosts.push_back(rank / ranks_per_host_);
    std::sort(hosts.begin(), hosts.end());
    return std::unique(hosts.begin(), hosts.end()) - hosts.begin();
  }

  void groups(const std::vector<std::string>& axes) {
    std::string name;
    int64_t size = 1;
    for (const std::string& axis : axes) {
      name += (name.empty() ? "" : " x ") + axis;
      size *= layout_.size(axis);
    }
    text_ << "  " << std::left << std::setw(8) << name << std::right;
    if (size == 1) {
      text_ << "each rank alone\n";
      return;
    }
    std::string shown;
    int64_t num_groups = 0, num_across = 0, most_hosts = 1;
    for (int64_t rank = 0; rank < layout_.size(); ++rank) {
      if (!is_first(axes, rank)) continue;
      const std::vector<int64_t> group = layout_.group(axes, rank);
      const int64_t hosts = hosts_of(group);
      ++num_groups;
      if (hosts > 1) ++num_across;
      most_hosts = std::max(most_hosts, hosts);
      if (num_groups <= static_cast<int64_t>(kGroupsShown)) shown += " " + set_of(group) + (hosts > 1 ? "*" : "");
    }
    if (num_groups > static_cast<int64_t>(kGroupsShown)) shown += " ...";
    text_ << counted(num_groups, "group") << " of " << size << ", ";
    if (num_across == 0) {
      text_ << "each within a host:";
    } else {
      text_ << num_across << " across hosts (*), up to " << most_hosts << ":";
    }
    text_ << shown << "\n";
  }

  /// Whether `rank` is the first of its group.
  bool is_first(const std::vector<std::string>& axes, int64_t rank) const {
    return std::all_of(axes.begin(), axes.end(),
                       [&](const std::string& axis) { return layout_.coordinate(rank, axis) == 0; });
  }

  const MeshLayout& layout_;
  int64_t ranks_per_host_;
  std::ostringstream text_;
};

}  // namespace

std::string draw_mesh(const MeshLayout& layout, int64_t ranks_per_host) {
  return Picture(layout, ranks_per_host).draw();
}

}  // namespace meshtrain
