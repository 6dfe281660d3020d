#pragma once

namespace meshtrain {

/// Checks the environment variables of ours that are seconds: MESHTRAIN_SILENCE_LIMIT and MESHTRAIN_SLOW_WRITE. Code
/// that reads them takes a wrong one for none. Throws InputError that names the variable and its bounds.
void check_variables();

}  // namespace meshtrain
