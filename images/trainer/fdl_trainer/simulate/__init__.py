"""``fdl simulate``: a cohort in virtual time, planned by the very code that plans real ones.

* :mod:`~fdl_trainer.simulate.scenario`: what is played: ranks, noise, costs, and a script of events;
* :mod:`~fdl_trainer.simulate.world`: the ranks in virtual time, window after window;
* :mod:`~fdl_trainer.simulate.account`: efficiency, and where the time went;
* :mod:`~fdl_trainer.simulate.text`: what a person reads; :mod:`~fdl_trainer.simulate.command`: the command.

Nothing here imports torch.
"""
