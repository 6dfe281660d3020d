#include "observer.h"

namespace meshtrain::emulated {

void observe(const char*, const std::string&) {}

}  // namespace meshtrain::emulated
