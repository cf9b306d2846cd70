"""frd names the first cause when distributed PyTorch training hangs, while it hangs."""

__version__ = "0.1.0"
