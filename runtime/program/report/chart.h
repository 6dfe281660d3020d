#pragma once

#include <string>
#include <vector>

#include "runtime/program/report/series.h"
#include "runtime/program/report/ticks.h"

namespace meshtrain {

constexpr int kNumColors = 8;  ///< of the style sheet: c0 to c7

/// The steps that all charts of a page show.
struct StepRange {
  double from = 0;
  double to = 1;
};

/// A curve of a chart.
struct Curve {
  std::string label;
  int color = 0;  ///< below kNumColors
  const Series* series = nullptr;
  bool has_points = false;  ///< a value here and there, as of evaluations: each is marked, and the line is dashed
};

/// A vertical line in every chart.
struct Mark {
  double step = 0;
  std::string text;
};

/// A chart over the steps of one or several runs.
struct Chart {
  std::string title;
  std::string note;  ///< under the title: unit, meaning
  ValueUnit unit = ValueUnit::None;
  std::vector<Curve> curves;
  std::vector<Mark> marks = {};
  bool begins_at_zero = false;
  bool may_be_log = false;  ///< values over more than two powers of ten get a logarithmic axis
};

/// Returns a chart as HTML: an SVG that fills its place in width, axes as text of constant size, a legend where there
/// are several curves, and the values for the page's script. A column of several steps is drawn as its mean, and a band
/// from its least to its most. Empty when no curve has a value.
std::string draw(const Chart& chart, const StepRange& steps);

/// Returns a small square of a color, for legends, as HTML.
std::string color_key(int color);

/// A curve of a stacked chart: its value by column.
struct StackedCurve {
  std::string label;
  int color = 0;
  std::vector<double> values;
};

/// Returns curves on top of each other, the first one at the bottom, as HTML. Value i belongs to the steps from i *
/// `width` on. Empty when there is no value.
std::string draw_stacked(const std::string& title, const std::string& note, ValueUnit unit,
                         const std::vector<StackedCurve>& curves, double width, const std::vector<Mark>& marks,
                         const StepRange& steps);

}  // namespace meshtrain
