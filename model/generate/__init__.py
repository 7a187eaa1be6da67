from model.generate.decode import generate

__all__ = ["generate"]
