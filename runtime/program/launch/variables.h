#pragma once

namespace meshtrain {

/// Checks our environment variables that are seconds: MESHTRAIN_PROGRESS, MESHTRAIN_SILENCE_LIMIT and
/// MESHTRAIN_SLOW_WRITE. Without this check an invalid value is silently ignored. Throws InputError with the variable
/// and its bounds.
void check_variables();

}  // namespace meshtrain
