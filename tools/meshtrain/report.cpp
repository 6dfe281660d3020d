#include "tools/meshtrain/report.h"

#include <algorithm>
#include <cstdio>

#include "mesh/agree.h"
#include "mesh/backends/mpi.h"
#include "mesh/error.h"
#include "tools/meshtrain/commands.h"

namespace meshtrain {
namespace {

std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

}  // namespace

Failure describe_failure(const std::exception& error, const std::string& place) {
  if (dynamic_cast<const InputError*>(&error) != nullptr) return {one_line(error.what()), 2};
  const std::string what = one_line(message_of(error));
  const bool says_where = place.empty() || what.rfind("rank ", 0) == 0;
  return {says_where ? what : place + ": " + what, 1};
}

void print_failure(const Failure& failure) {
  std::fflush(stdout);
  std::fprintf(stderr, "meshtrain: %s\n", failure.message.c_str());
}

int run_on_all_ranks(const Group& world, const std::function<int()>& body) {
  if (world.size() == 1) return body();
  Failure failure;
  try {
    return body();
  } catch (const InputError& error) {
    failure = describe_failure(error, "");
  } catch (const AgreedError& error) {
    failure = describe_failure(error, "");
  } catch (const std::exception& error) {
    print_failure(describe_failure(error, world.place()));
    abort_mpi(1);
  }
  if (world.rank() == 0) print_failure(failure);
  return failure.status;
}

}  // namespace meshtrain
