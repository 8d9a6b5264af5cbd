"""An end that is no exception; argv[1] names who says why. What C++, glog and Rust print is written as they print it."""

import ctypes
import faulthandler
import os
import sys

print("step 3", flush=True)


def fall() -> None:
    """Read memory that is not there."""
    ctypes.string_at(0)


def abort_after(text: str) -> None:
    """Print the text and abort."""
    sys.stderr.write(text)
    sys.stderr.flush()
    os.abort()


match sys.argv[1]:
    case "faulthandler":
        faulthandler.enable()
        fall()
    case "time-limit":
        faulthandler.dump_traceback_later(0.1, exit=True)
        sys.stdin.read() if sys.stdin.isatty() else os.read(os.pipe()[0], 1)
    case "glibc":
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        memory = libc.malloc(8)
        libc.free(memory)
        libc.free(memory)
    case "c10":
        abort_after(
            "terminate called after throwing an instance of 'c10::Error'\n"
            "  what():  CUDA error: device-side assert triggered\n"
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"
            " incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n"
            "Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:43 (most recent call"
            " first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f0a in libc10.so)\n"
            "frame #1: clone + 0x40 (0x7f0b in libc.so.6)\n\n"
        )
    case "glog":
        abort_after(
            "F20261127 07:00:00.123456   123 reader.cc:33] Check failed: fd >= 0 (-1 vs. 0) shard 3 cannot be opened\n"
            "*** Check failure stack trace: ***\n    @     0x7f0a12345678  google::LogMessage::Fail()\n"
            "    @              (nil)  (unknown)\n"
        )
    case "rust":
        abort_after(
            "thread '<unnamed>' panicked at src/lib.rs:10:5:\nindex out of bounds: the len is 3 but the index is 7\n"
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"
        )
