"""ftrun: the first process of a training container."""

__version__ = "0.1.0"
