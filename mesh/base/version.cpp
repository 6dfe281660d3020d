#include "mesh/base/version.h"

namespace meshtrain {

const char* version() {
  return MESHTRAIN_VERSION;
}

}  // namespace meshtrain
