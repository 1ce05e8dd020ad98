"""A PyTorch program whose kernel Triton compiles and loads, as under vLLM and SGLang; prints what the GPU computed."""

import importlib


def main() -> None:
    torch = importlib.import_module("torch")  # not a library of ours
    doubled = torch.compile(lambda values: (values * 2).sin().sum())
    print(round(float(doubled(torch.zeros(4096, device="cuda"))), 3))


if __name__ == "__main__":
    main()
