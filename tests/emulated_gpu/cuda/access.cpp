#include "access.h"

#include <sys/mman.h>

#include "streams.h"

namespace meshtrain::emulated {
namespace {

thread_local int depth = 0;

}  // namespace

int protection_key() {
  static const int key =
      pkey_alloc(0, PKEY_DISABLE_ACCESS);  // -1 without protection keys; other threads have no access at first
  return key;
}

void deny_access() {
  if (protection_key() >= 0) pkey_set(protection_key(), PKEY_DISABLE_ACCESS);
}

DeviceAccess::DeviceAccess() {
  if (depth++ == 0 && protection_key() >= 0) pkey_set(protection_key(), 0);
}

DeviceAccess::~DeviceAccess() {
  if (--depth == 0) deny_access();
}

}  // namespace meshtrain::emulated
