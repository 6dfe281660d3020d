#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "mesh/group.h"

namespace meshtrain {

// Each adds one command to the program: its options, its help, and what happens when it is asked for, whose exit status
// (0, 1, 2 or 75) goes to `status`, which outlives `app`. Errors are thrown: main reports them.
void add_train_command(CLI::App& app, int& status);
void add_verify_command(CLI::App& app, int& status);
void add_plan_command(CLI::App& app, int& status);
void add_recipe_command(CLI::App& app, int& status);
void add_reproduce_command(CLI::App& app, int& status);
void add_mesh_command(CLI::App& app, int& status);
void add_data_command(CLI::App& app, int& status);
void add_checkpoint_command(CLI::App& app, int& status);
void add_generate_command(CLI::App& app, int& status);
void add_evaluate_command(CLI::App& app, int& status);
void add_diagnose_command(CLI::App& app, int& status);
void add_report_command(CLI::App& app, int& status);

/// Runs a command's `body` on the ranks of `world`, which watch each other meanwhile (Watch). Returns the exit status
/// of this rank when all ranks have reached their end. All ranks throw InputError and AgreedError alike; rank 0 reports
/// them. A rank that throws anything else throws it alone: it reports the error and ends the job, so that no rank is
/// left waiting. Every rank of `world` must call it.
int run_on_all_ranks(const Group& world, const std::function<int()>& body);

}  // namespace meshtrain
