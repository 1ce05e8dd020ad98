"""A PyTorch program that takes GPU memory until it gets no more; prints what it saw and got as JSON, in MiB."""

import importlib
import json
import sys

_PIECE = 32  # MiB


def main() -> None:
    torch = importlib.import_module("torch")  # not a library of ours
    most = int(sys.argv[1])
    pieces: list[object] = []
    facts = {"total": torch.cuda.get_device_properties(0).total_memory >> 20, "refused": False}
    try:
        while _PIECE * len(pieces) < most:
            pieces.append(torch.ones(_PIECE << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        facts["refused"] = True
    facts["got"] = _PIECE * len(pieces)
    pieces.clear()
    torch.cuda.empty_cache()
    facts["compiled"] = torch.compile(lambda values: (values * 2).sum())(torch.ones(8, device="cuda")).item()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
