#!/usr/bin/env python3
"""Holds a context on each GPU until stdin ends. Otherwise a driver without persistence initialises the GPU again for each
program that opens it. Prints the number of GPUs that it holds, or the reason why it holds none."""

import ctypes
import sys

COMPUTE_MODE, DEFAULT = 20, 0  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT


def hold():
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        status = getattr(driver, name)(*arguments)
        if status != 0:
            raise OSError(f"{name} returned {status}")

    number, mode, context, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    for i in range(count.value):
        call("cuDeviceGet", ctypes.byref(number), i)
        call("cuDeviceGetAttribute", ctypes.byref(mode), COMPUTE_MODE, number)
        if mode.value != DEFAULT:
            raise OSError(f"GPU {i} has compute mode {mode.value} and would be held from the programs")
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    return count.value


if __name__ == "__main__":
    try:
        print(f"a context is held on each GPU: {hold()}", flush=True)
    except (OSError, AttributeError) as error:
        print(f"no context is held: {error}", flush=True)
    else:
        sys.stdin.read()
