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
void add_mesh_command(CLI::App& app, int& status);
void add_data_command(CLI::App& app, int& status);
void add_checkpoint_command(CLI::App& app, int& status);
void add_generate_command(CLI::App& app, int& status);
void add_evaluate_command(CLI::App& app, int& status);
void add_diagnose_command(CLI::App& app, int& status);
void add_report_command(CLI::App& app, int& status);

/// Runs a command's `body` on the ranks of `world`, which look after each other meanwhile (Watch), and returns the exit
/// status of this rank once all have come to their end. InputError and AgreedError are what all ranks throw alike: rank
/// 0 reports them. Anything else is thrown by a rank alone: it reports it and ends the complete job, so that no rank is
/// left waiting. Every rank of `world` must call it.
int run_on_all_ranks(const Group& world, const std::function<int()>& body);

}  // namespace meshtrain
