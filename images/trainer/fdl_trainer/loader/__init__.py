"""The tensors of a rank's micro-batches: where they are kept, who reads them, and what happens when one is bad.

Modules, top layer first:

* :mod:`~fdl_trainer.loader.loader`: hands the batches of a lease out and reads the next ones ahead;
* :mod:`~fdl_trainer.loader.workers` (processes that read), :mod:`~fdl_trainer.loader.courier` (copies to a device),
  :mod:`~fdl_trainer.loader.resident` (the whole dataset on the device);
* :mod:`~fdl_trainer.loader.fetch`: samples of a dataset made into a batch, bad ones named or left out;
* :mod:`~fdl_trainer.loader.residency`, :mod:`~fdl_trainer.loader.order`: pure rules; :mod:`~fdl_trainer.loader.memory`:
  what is free; :mod:`~fdl_trainer.loader.trees`: nested batches.
"""

from fdl_trainer.loader.fetch import DataError
from fdl_trainer.loader.loader import Batch, Loader
from fdl_trainer.loader.trees import to_device

__all__ = ["Batch", "DataError", "Loader", "to_device"]
