#include "tests/support/hosts.h"

#include <algorithm>
#include <map>

#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

std::vector<int> numbered(int (*host_of)(int rank, int size)) {
  std::vector<int> hosts;
  for (int rank = 0; rank < world().size(); ++rank) hosts.push_back(host_of(rank, world().size()));
  return hosts;
}

MpiOptions options_of(Hosts hosts) {
  switch (hosts) {
    case Hosts::Found:
      return {};
    case Hosts::Two:
      return {.hosts = numbered([](int rank, int size) { return rank / std::max(size / 2, 1); })};
    case Hosts::InTurn:
      return {.hosts = numbered([](int rank, int) { return rank % 2; })};
    case Hosts::Unequal:
      return {.hosts = numbered([](int rank, int size) { return rank < std::max(3 * size / 8, 1) ? 0 : 1; })};
    case Hosts::Each:
      return {.hosts = numbered([](int rank, int) { return rank; })};
    case Hosts::Refused:
      return {.window_bytes = 0};
  }
  return {};
}

}  // namespace

std::string name_of(Hosts hosts) {
  switch (hosts) {
    case Hosts::Found:
      return "hosts_as_found";
    case Hosts::Two:
      return "two_hosts";
    case Hosts::InTurn:
      return "two_hosts_in_turn";
    case Hosts::Unequal:
      return "unequal_hosts";
    case Hosts::Each:
      return "a_host_each";
    case Hosts::Refused:
      return "refused";
  }
  return "";
}

const Group& world_on(Hosts hosts) {
  static std::map<Hosts, Group> groups;
  const auto found = groups.find(hosts);
  return found != groups.end() ? found->second : groups.emplace(hosts, world_over(options_of(hosts))).first->second;
}

Group world_over(const MpiOptions& options) {
  if (world().size() == 1) return world();
  return Group(mpi_backend(options), "windows", world().ranks(), world().coordinate_text());
}

}  // namespace meshtrain::testing
