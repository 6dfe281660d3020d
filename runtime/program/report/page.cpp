#include "runtime/program/report/page.h"

#include <string_view>

namespace meshtrain {
namespace {

/// The files in page/ in three pieces. Between them go the addresses that the page may ask, and its report.
constexpr std::string_view kPage[] = {
#include <report_page.inc>
};
static_assert(std::size(kPage) == 3);

}  // namespace

std::string make_page(const std::string& report, bool follows) {
  std::string page(kPage[0]);
  page += follows ? "'self'" : "'none'";
  page += kPage[1];
  page += report;
  page += kPage[2];
  return page;
}

}  // namespace meshtrain
