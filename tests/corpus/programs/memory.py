"""Memory that runs out, in the words of several libraries; argv[1] says where."""

import mmap
import sys

match sys.argv[1]:
    case "numpy":
        import numpy

        numpy.zeros((1 << 43,))
    case "torch":
        import torch

        torch.empty(1 << 46)
    case "python":
        bytearray(1 << 48)
    case "mmap":
        mmap.mmap(-1, 1 << 46)
    case "shared":
        raise RuntimeError("unable to write to file </torch_1_2_3>: No space left on device (28)")
