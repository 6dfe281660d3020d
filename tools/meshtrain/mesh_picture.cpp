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
    if (layout_.ep() > 1) {
      for (const std::string axis : {kExpertDataAxis, kExpertAxis}) {
        groups_of(axis, layout_.experts().size(axis), [&](int64_t rank) { return expert_group(axis, rank); });
      }
    }
    return text_.str();
  }

 private:
  void table() {
    text_ << std::setw(8) << "rank" << std::setw(8) << "host";
    for (const Axis& axis : layout_.axes()) text_ << std::setw(8) << axis.name;
    if (layout_.ep() > 1) text_ << std::setw(8) << kExpertDataAxis << std::setw(8) << kExpertAxis;
    text_ << "\n";
    for (int64_t rank = 0; rank < layout_.size(); ++rank) {
      if (layout_.size() > kFullTable && rank == kFirst) {
        rank = layout_.size() - kLast;
        text_ << std::setw(8) << "..."
              << "\n";
      }
      text_ << std::setw(8) << rank << std::setw(8) << rank / ranks_per_host_;
      for (const int64_t coordinate : layout_.coordinate(rank)) text_ << std::setw(8) << coordinate;
      if (layout_.ep() > 1) {
        for (const std::string axis : {kExpertDataAxis, kExpertAxis}) text_ << std::setw(8) << place(axis, rank);
      }
      text_ << "\n";
    }
  }

  int64_t hosts_of(const std::vector<int64_t>& ranks) const {
    std::vector<int64_t> hosts;
    for (const int64_t rank : ranks) hosts.push_back(rank / ranks_per_host_);
    std::sort(hosts.begin(), hosts.end());
    return std::unique(hosts.begin(), hosts.end()) - hosts.begin();
  }

  /// Returns `rank` and the ranks of its stage that differ from it along `axis` of the mesh of experts, ep or edp.
  std::vector<int64_t> expert_group(const std::string& axis, int64_t rank) const {
    std::vector<std::string> of_stage;
    for (const Axis& each : layout_.axes()) {
      if (each.name != kPipelineAxis) of_stage.push_back(each.name);
    }
    const std::vector<int64_t> stage = layout_.group(of_stage, rank);
    std::vector<int64_t> ranks;
    for (const int64_t position : layout_.experts().group({axis}, std::ranges::find(stage, rank) - stage.begin())) {
      ranks.push_back(stage[static_cast<size_t>(position)]);
    }
    return ranks;
  }

  /// Returns the coordinate of a rank along an axis of the mesh of experts.
  int64_t place(const std::string& axis, int64_t rank) const {
    const std::vector<int64_t> group = expert_group(axis, rank);
    return std::ranges::find(group, rank) - group.begin();
  }

  void groups(const std::vector<std::string>& axes) {
    std::string name;
    int64_t size = 1;
    for (const std::string& axis : axes) {
      name += (name.empty() ? "" : " x ") + axis;
      size *= layout_.size(axis);
    }
    groups_of(name, size, [&](int64_t rank) { return layout_.group(axes, rank); });
  }

  template <class GroupOf>
  void groups_of(const std::string& name, int64_t size, const GroupOf& group_of) {
    text_ << "  " << std::left << std::setw(8) << name << std::right;
    if (size == 1) {
      text_ << "each rank alone\n";
      return;
    }
    std::string shown;
    int64_t num_groups = 0, num_across = 0, most_hosts = 1;
    for (int64_t rank = 0; rank < layout_.size(); ++rank) {
      const std::vector<int64_t> group = group_of(rank);
      if (group.front() != rank) continue;
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

  const MeshLayout& layout_;
  int64_t ranks_per_host_;
  std::ostringstream text_;
};

}  // namespace

std::string draw_mesh(const MeshLayout& layout, int64_t ranks_per_host) {
  return Picture(layout, ranks_per_host).draw();
}

}  // namespace meshtrain
