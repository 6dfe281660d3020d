#pragma once

#include <string>

namespace meshtrain {

/// Returns "; here ..." about an option of another launcher or trainer, or about a key of a recipe that was given as an
/// option: "--nproc_per_node", "--lr=1e-4", "--train.steps". Empty for other words.
std::string foreign_option(const std::string& word);

/// Returns `; here it is train` for a word that other trainers have in the place of a command of meshtrain, else
/// nothing.
std::string foreign_command(const std::string& word);

}  // namespace meshtrain
