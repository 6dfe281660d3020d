#pragma once

namespace meshtrain {

class KnownKeys;
struct YamlValue;

/// Throws InputError about all keys in `root`, the outermost map, and in the maps in it, that `keys` does not have:
/// each with its location and the key that was meant. A map of another system's keys ("training") is answered key by
/// key.
void refuse_unknown_keys(const YamlValue& root, const KnownKeys& keys);

}  // namespace meshtrain
