__version__ = "0.5.17+reliable.1"
