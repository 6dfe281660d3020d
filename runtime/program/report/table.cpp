#include "runtime/program/report/table.h"

#include <algorithm>

#include "mesh/base/size_text.h"
#include "runtime/program/report/html.h"

namespace meshtrain {

std::string Table::html(size_t wide) const {
  if (rows_.empty()) return "";
  std::string html = "<div class=\"scroll\"><table><tr>";
  for (const std::string& name : names_) html += "<th>" + escaped(name) + "</th>";
  html += "</tr>\n";
  const size_t num_left_out = rows_.size() - std::min(rows_.size(), kMostRows);
  for (size_t row = num_left_out; row < rows_.size(); ++row) {
    html += "<tr>";
    for (size_t i = 0; i < rows_[row].size(); ++i) {
      html += (i >= wide ? "<td class=\"wide\">" : "<td>") + escaped(rows_[row][i]) + "</td>";
    }
    html += "</tr>\n";
  }
  html += "</table></div>\n";
  if (num_left_out == 0) return html;
  return html + "<p class=\"note\">" + counted(num_left_out, "row") + " before these left out</p>\n";
}

}  // namespace meshtrain
