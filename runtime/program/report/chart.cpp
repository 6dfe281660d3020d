#include "runtime/program/report/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/program/report/html.h"

namespace meshtrain {
namespace {

constexpr double kSide = 1000;  // of the drawing, which is stretched to the place that it gets
constexpr int kTicksUp = 5, kTicksAcross = 6;

std::string fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  std::string number = text;
  if (number.ends_with(".0")) number.resize(number.size() - 2);
  return number;
}

/// Returns a number for the script, in as many digits as people read.
std::string short_json(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return std::isfinite(value) ? text : "null";
}

/// Returns a JSON string that may stand inside of a script element.
std::string json_text(const std::string& text) {
  std::string json = nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;) json.replace(at, 1, "\\u003c");
  return json;
}

std::string unit_name(ValueUnit unit) {
  switch (unit) {
    case ValueUnit::Bytes:
      return "bytes";
    case ValueUnit::Seconds:
      return "seconds";
    case ValueUnit::Percent:
      return "percent";
    case ValueUnit::Flops:
      return "flops";
    case ValueUnit::PerSecond:
    case ValueUnit::None:
      return "number";
  }
  return "number";
}

/// The frame of a chart: everything but what is drawn in it.
class Frame {
 public:
  Frame(const StepRange& steps, const Scale& up)
      : steps_(steps), across_(step_scale(steps.from, steps.to, kTicksAcross)), up_(up) {}

  double x(double step) const { return kSide * (step - steps_.from) / std::max(steps_.to - steps_.from, 1.0); }
  double y(double value) const {
    const double position = up_.position(value);
    return kSide * (1 - std::clamp(position, -1.0, 2.0));
  }
  std::string point(double step, double value) const { return fixed(x(step)) + " " + fixed(y(value)); }

  std::string html(const std::string& title, const std::string& note, ValueUnit unit, const std::string& drawing,
                   const std::vector<Mark>& marks, const std::string& legend, const std::string& data) const {
    std::string html = "<figure class=\"chart\" data-unit=\"" + unit_name(unit) + "\" data-from=\"" +
                       short_json(steps_.from) + "\" data-to=\"" + short_json(steps_.to) + "\">\n<figcaption><b>" +
                       escaped(title) + "</b> <span>" + escaped(note) + "</span></figcaption>\n";
    html += "<div class=\"plot\"><div class=\"up\">";
    for (const double tick : up_.ticks) {
      html += "<i style=\"bottom:" + fixed(100 * up_.position(tick)) + "%\">" + escaped(text_of(tick, unit)) + "</i>";
    }
    html +=
        "</div><div class=\"area\"><svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\" "
        "aria-label=\"" +
        escaped(title) + "\">\n<g class=\"grid\">";
    for (const double tick : up_.ticks) html += "<path d=\"M0 " + fixed(y(tick)) + "H1000\"/>";
    html += "</g>\n" + drawing;
    if (!marks.empty()) html += "<g class=\"marks\">";
    for (const Mark& mark : marks) {
      html += "<path d=\"M" + fixed(x(mark.step)) + " 0V1000\"><title>" + escaped(mark.text) + "</title></path>";
    }
    if (!marks.empty()) html += "</g>\n";
    html += "</svg></div><div class=\"across\">";
    for (const double tick : across_.ticks) {
      html += "<i style=\"left:" + fixed(x(tick) / kSide * 100) + "%\">" + escaped(text_of(tick)) + "</i>";
    }
    html += "</div><span class=\"axis\">step</span></div>\n";
    if (!legend.empty()) html += "<p class=\"legend\">" + legend + "</p>\n";
    return html + "<script type=\"application/json\">[" + data + "]</script>\n</figure>\n";
  }

 private:
  StepRange steps_;
  Scale across_, up_;
};

std::string legend_entry(const std::string& label, int color) {
  return "<span>" + color_key(color) + escaped(label) + "</span> ";
}

std::string data_of(const std::string& label, int color, const std::string& steps, const std::string& values) {
  return "{\"label\":" + json_text(label) + ",\"color\":" + std::to_string(color) + ",\"x\":[" + steps + "],\"y\":[" +
         values + "]}";
}

/// The range of all values of a chart.
Column range_of(const Chart& chart) {
  Column all;
  for (const Curve& curve : chart.curves) all.add(curve.series->total());
  return all;
}

Scale scale_of(const Chart& chart, const Column& range) {
  constexpr double kManyTimes = 100;
  if (chart.may_be_log && range.least > 0 && range.most / range.least > kManyTimes) {
    return log_scale(range.least, range.most, kTicksUp);
  }
  return linear_scale(chart.begins_at_zero ? std::min(range.least, 0.0) : range.least, range.most, kTicksUp,
                      chart.unit);
}

std::string draw_curve(const Curve& curve, const Frame& frame, std::string& data) {
  const Series& series = *curve.series;
  const std::vector<Column>& columns = series.columns();
  std::string line, there, back, points, steps, values;
  bool is_gap = true;
  for (size_t i = 0; i < columns.size(); ++i) {
    const Column& column = columns[i];
    if (column.count == 0) {
      is_gap = is_gap || column.num_others > 0;
      continue;
    }
    const double step = series.step_of(i);
    const std::string at = frame.point(step, column.mean());
    line += (is_gap ? "M" : "L") + at;
    if (curve.has_points) points += "M" + at + "h0";
    there += (there.empty() ? "M" : "L") + frame.point(step, column.most);
    back = "L" + frame.point(step, column.least) + back;
    steps += (steps.empty() ? "" : ",") + fixed(step);
    values += (values.empty() ? "" : ",") + short_json(column.mean());
    is_gap = false;
  }
  if (line.empty()) return "";
  data += (data.empty() ? "" : ",") + data_of(curve.label, curve.color, steps, values);
  std::string drawing = "<g class=\"c" + std::to_string(curve.color) + "\">";
  if (series.width() > 1) drawing += "<path class=\"band\" d=\"" + there + back + "Z\"/>";
  drawing += std::string("<path class=\"line") + (curve.has_points ? " sparse" : "") + "\" d=\"" + line + "\"/>";
  if (!points.empty()) drawing += "<path class=\"points\" d=\"" + points + "\"/>";
  return drawing + "</g>\n";
}

}  // namespace

std::string color_key(int color) {
  return "<svg viewBox=\"0 0 10 10\" class=\"key c" + std::to_string(color) +
         "\"><rect width=\"10\" height=\"10\" rx=\"2\"/></svg>";
}

std::string draw(const Chart& chart, const StepRange& steps) {
  const Column range = range_of(chart);
  if (range.count == 0) return "";
  const Frame frame(steps, scale_of(chart, range));
  std::string drawing, data, legend;
  int num_curves = 0;
  for (const Curve& curve : chart.curves) {
    const std::string drawn = draw_curve(curve, frame, data);
    if (drawn.empty()) continue;
    drawing += drawn;
    legend += legend_entry(curve.label, curve.color);
    ++num_curves;
  }
  return frame.html(chart.title, chart.note, chart.unit, drawing, chart.marks, num_curves > 1 ? legend : "", data);
}

std::string draw_stacked(const std::string& title, const std::string& note, ValueUnit unit,
                         const std::vector<StackedCurve>& curves, double width, const std::vector<Mark>& marks,
                         const StepRange& steps) {
  const size_t num_columns = curves.empty() ? 0 : curves.front().values.size();
  std::vector<double> below(num_columns, 0.0), sums(num_columns, 0.0);
  for (const StackedCurve& curve : curves) {
    for (size_t i = 0; i < num_columns; ++i) sums[i] += curve.values[i];
  }
  double most = 0;
  for (const double sum : sums) {
    if (std::isfinite(sum)) most = std::max(most, sum);
  }
  if (most == 0) return "";
  const Frame frame(steps, linear_scale(0, most, kTicksUp, unit));
  std::string drawing, data, legend;
  for (const StackedCurve& curve : curves) {
    std::string top, bottom, at, values;
    for (size_t i = 0; i < num_columns; ++i) {
      if (!std::isfinite(sums[i])) continue;  // a column without steps
      const double step = width * static_cast<double>(i) + (width - 1) / 2;
      bottom = "L" + frame.point(step, below[i]) + bottom;
      below[i] += curve.values[i];
      top += (top.empty() ? "M" : "L") + frame.point(step, below[i]);
      at += (at.empty() ? "" : ",") + fixed(step);
      values += (values.empty() ? "" : ",") + short_json(curve.values[i]);
    }
    drawing +=
        "<g class=\"c" + std::to_string(curve.color) + "\"><path class=\"layer\" d=\"" + top + bottom + "Z\"/></g>\n";
    data += (data.empty() ? "" : ",") + data_of(curve.label, curve.color, at, values);
    legend = legend_entry(curve.label, curve.color) + legend;  // as they lie, from the top
  }
  return frame.html(title, note, unit, drawing, marks, legend, data);
}

}  // namespace meshtrain
