"""molflt: linear, exactly invariant Fourier-RPE transformers for molecules and materials."""

from typing import TYPE_CHECKING, Any

from molflt.errors import InputError

if TYPE_CHECKING:
    from molflt.adsorption.adsorb import adsorb
    from molflt.prediction.model import Model, load

__version__ = "0.1.0"
__all__ = ["InputError", "Model", "__version__", "adsorb", "load"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and the command line's help needs none of it.
    if name in ("Model", "load"):
        from molflt.prediction import model

        return getattr(model, name)
    if name == "adsorb":
        from molflt.adsorption.adsorb import adsorb

        return adsorb
    raise AttributeError(f"module 'molflt' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
