"""`python -m onnx_egraph`: the command line, where its console script is not on the path."""

from .cli import main

if __name__ == "__main__":
    main()
