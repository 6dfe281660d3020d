#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mesh/error.h"
#include "mesh/layout.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/mesh_picture.h"

namespace meshtrain {
namespace {

constexpr int64_t kMaxRanks = 1 << 20;  // beyond this the groups take too long to count

struct MeshArguments {
  std::string mesh;
  int64_t ranks = 0;
  std::vector<std::string> order = {"dp", "cp", "tp"};
  int64_t ranks_per_host = 0;
};

/// How many ranks the mesh has when nobody says.
int64_t product(const std::map<std::string, int64_t>& sizes) {
  int64_t ranks = 1;
  for (const auto& [axis, size] : sizes) {
    if (size == MeshLayout::kAuto) throw InputError("mesh " + axis + "=auto: give --ranks, the number of ranks in all");
    if (size > kMaxRanks / ranks) throw InputError("mesh: more than " + std::to_string(kMaxRanks) + " ranks to print");
    ranks *= size;
  }
  return ranks;
}

void print(const MeshArguments& arguments) {
  std::vector<std::string> sorted = arguments.order;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != std::vector<std::string>{"cp", "dp", "tp"}) {
    throw InputError("--order must name each of dp, tp, cp once, as in --order dp,cp,tp");
  }
  const std::map<std::string, int64_t> sizes = parse_mesh(arguments.mesh);
  const int64_t ranks = arguments.ranks > 0 ? arguments.ranks : product(sizes);
  if (ranks > kMaxRanks) throw InputError("--ranks: more than " + std::to_string(kMaxRanks) + " ranks to print");
  const MeshLayout layout = MeshLayout::fit(sizes, arguments.order, ranks);
  std::fputs(draw_mesh(layout, arguments.ranks_per_host).c_str(), stdout);
}

}  // namespace

void add_mesh_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("mesh", "Prints a mesh: who sits where, which groups, which cross a host");
  const auto arguments = std::make_shared<MeshArguments>();
  command->add_option("--mesh", arguments->mesh, "Sizes of the axes, one may be auto; those left out are 1")
      ->required()
      ->type_name("dp=N,tp=N,cp=N");
  command->add_option("--ranks", arguments->ranks, "Ranks in all; without it the product of the sizes")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command->add_option("--order", arguments->order, "Axes, outermost first: the last one has neighbouring ranks")
      ->delimiter(',')
      ->default_str("dp,cp,tp")
      ->type_name("AXES");
  command->add_option("--hosts-of", arguments->ranks_per_host, "Ranks on each host; without it there is one host")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command->footer(
      "Starts no ranks. Example: a cluster of hosts with 8 ranks each\n"
      "  meshtrain mesh --mesh dp=auto,tp=4,cp=2 --ranks 32 --hosts-of 8");
  command->callback([arguments, &status] {
    print(*arguments);
    status = 0;
  });
}

}  // namespace meshtrain
