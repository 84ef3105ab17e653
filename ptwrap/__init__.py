"Train PyTorch models in notebooks: see everything, touch everything, trust every number."
__version__ = "0.1.0"


def __getattr__(name: str):
    "`ptwrap.Learner` and the rest of `ptwrap.all`, imported at the first use: `import ptwrap` alone stays instant."
    if name.startswith("_"):
        raise AttributeError(f"module 'ptwrap' has no attribute {name!r}")
    from importlib import import_module
    everything = import_module("ptwrap.all")
    if name in everything.__all__:
        return getattr(everything, name)
    raise AttributeError(f"module 'ptwrap' has no attribute {name!r}")


def __dir__():
    from importlib import import_module
    return sorted([*globals(), *import_module("ptwrap.all").__all__])
