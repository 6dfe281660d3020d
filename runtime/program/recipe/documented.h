#pragma once

#include <optional>
#include <string>

#include "runtime/program/yaml/rule.h"

namespace meshtrain {

/// The section `documented` of a recipe: the public configuration that the recipe reproduces, and its published result.
/// A run does not use it.
struct DocumentedRun {
  std::string reference;             ///< who documents it, and where
  std::string hardware;              ///< name of a machine preset; empty: not stated
  std::string kernels = "eager";     ///< eager compiled fused: kernels of the program that ran
  bool fp8_layers = false;           ///< linear layers ran in fp8
  std::string figure;                ///< "18.90 s/step", or any text; empty: none is published
  std::optional<double> figure_gib;  ///< published peak of a GPU's memory
  std::string differs;               ///< what differs here, in a sentence; empty: nothing that is known
};

template <class Archive>
void fields(Archive& archive, DocumentedRun& run) {
  archive.field("reference", run.reference, {.required = true});
  archive.field("hardware", run.hardware);
  archive.field("kernels", run.kernels, {.choices = {"eager", "compiled", "fused"}});
  archive.field("fp8_layers", run.fp8_layers);
  archive.field("figure", run.figure);
  archive.field("figure_gib", run.figure_gib, {.above = 0});
  archive.field("differs", run.differs);
}

/// A figure that a forecast can be compared with: a value above 0 and its unit.
struct PublishedFigure {
  double value = 0;
  std::string unit;  ///< tok/s/gpu, s/step, TFLOP/s full or TFLOP/s causal
};

/// Returns the figure that `run.figure` begins with: "18.90 s/step"; none for other texts.
std::optional<PublishedFigure> figure_of(const DocumentedRun& run);

}  // namespace meshtrain
