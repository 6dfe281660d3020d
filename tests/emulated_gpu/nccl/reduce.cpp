#include <cmath>
#include <cstdint>
#include <type_traits>

#include "operation.h"

namespace meshtrain::emulated {
namespace {

template <typename T>
struct Same {
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};

struct OfHalf {
  static float load(__half value) { return __half2float(value); }
  static __half store(float value) { return __float2half_rn(value); }
};

struct OfBFloat16 {
  static float load(__nv_bfloat16 value) { return __bfloat162float(value); }
  static __nv_bfloat16 store(float value) { return __float2bfloat16_rn(value); }
};

template <typename T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));  // wraps around
  } else {
    return a + b;
  }
}

template <typename T>
T larger(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return a > b ? a : b;
  } else {
    return std::fmax(a, b);
  }
}

template <typename T, typename Via>
void reduce_as(const std::vector<const void*>& inputs, void* output, size_t count, ncclRedOp_t how) {
  for (size_t index = 0; index < count; ++index) {
    auto value = Via::load(static_cast<const T*>(inputs[0])[index]);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const auto next = Via::load(static_cast<const T*>(inputs[rank])[index]);
      value = how == ncclSum ? add(value, next) : larger(value, next);
    }
    static_cast<T*>(output)[index] = Via::store(value);
  }
}

}  // namespace

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

void reduce(const std::vector<const void*>& inputs, void* output, size_t count, ncclDataType_t type, ncclRedOp_t how) {
  switch (type) {
    case ncclInt8:
      return reduce_as<int8_t, Same<int8_t>>(inputs, output, count, how);
    case ncclUint8:
      return reduce_as<uint8_t, Same<uint8_t>>(inputs, output, count, how);
    case ncclInt32:
      return reduce_as<int32_t, Same<int32_t>>(inputs, output, count, how);
    case ncclUint32:
      return reduce_as<uint32_t, Same<uint32_t>>(inputs, output, count, how);
    case ncclInt64:
      return reduce_as<int64_t, Same<int64_t>>(inputs, output, count, how);
    case ncclUint64:
      return reduce_as<uint64_t, Same<uint64_t>>(inputs, output, count, how);
    case ncclFloat16:
      return reduce_as<__half, OfHalf>(inputs, output, count, how);
    case ncclBfloat16:
      return reduce_as<__nv_bfloat16, OfBFloat16>(inputs, output, count, how);
    case ncclFloat32:
      return reduce_as<float, Same<float>>(inputs, output, count, how);
    case ncclFloat64:
      return reduce_as<double, Same<double>>(inputs, output, count, how);
    default:
      return;
  }
}

}  // namespace meshtrain::emulated
