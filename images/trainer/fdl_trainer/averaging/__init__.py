"""The average: flat buffers, weights, integer buffers, statistics, and outer optimizers.

* :mod:`~fdl_trainer.averaging.state`: :class:`ModelState`, the committed state and the two steps of a window;
* :mod:`~fdl_trainer.averaging.wire`: what travels, and how the buffers are laid out;
* :mod:`~fdl_trainer.averaging.inventory`: which tensors of a model belong to it, and by which rule;
* :mod:`~fdl_trainer.averaging.weighing`, :mod:`~fdl_trainer.averaging.outer`: the arithmetic of a run's settings;
* :mod:`~fdl_trainer.averaging.slots`: the optimizer's own tensors;
* :mod:`~fdl_trainer.averaging.gradients`: one step on everybody's mean gradient, instead of an average of parameters;
* :mod:`~fdl_trainer.averaging.moments`, :mod:`~fdl_trainer.averaging.integers`: tensors that a mean would spoil;
* :mod:`~fdl_trainer.averaging.settings`, :mod:`~fdl_trainer.averaging.build`, :mod:`~fdl_trainer.averaging.memory`:
  what a run asks for, and what it costs.
"""

from fdl_trainer.averaging.build import build
from fdl_trainer.averaging.gradients import Gradients
from fdl_trainer.averaging.inventory import ModelChangedError, UnsupportedModelError
from fdl_trainer.averaging.memory import NotEnoughMemoryError
from fdl_trainer.averaging.settings import Averaging
from fdl_trainer.averaging.slots import Slots
from fdl_trainer.averaging.state import ModelState
from fdl_trainer.averaging.weighing import Share, Weighing, Weights
from fdl_trainer.averaging.wire import Wire

__all__ = [
    "Averaging",
    "Gradients",
    "ModelChangedError",
    "ModelState",
    "NotEnoughMemoryError",
    "Share",
    "Slots",
    "UnsupportedModelError",
    "Weighing",
    "Weights",
    "Wire",
    "build",
]
