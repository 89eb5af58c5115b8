"""What a rank says of itself when it dials: at first, and again within a running training."""

from fdl_api import wire
from fdl_api.version import WIRE_VERSION
from fdl_trainer.agreed import Control
from fdl_trainer.member import Member
from fdl_trainer.pairs import Pairs
from fdl_trainer.progress import Reporter
from fdl_trainer.resume import Resumed


class Hello:
    """Makes this rank's Hello.

    Args:
        member: the rank.
        model_digest: signature of its model.
        specs: the model's parameters and buffers.
        data_digest: signature of its data.
        control: the state that it starts from.
        resumed: the checkpoint that this is of, if any.

    Attributes:
        reporter: knows what has been committed since, once the training goes.
        pairs: tests the ways to other ranks; None: they are not tested.
        data: where the rank's data is, in a few words.
    """

    def __init__(
        self,
        member: Member | None,
        *,
        model_digest: str,
        specs: list[wire.ParameterSpec],
        data_digest: str,
        control: Control,
        resumed: Resumed,
    ) -> None:
        self.reporter: Reporter | None = None
        self.pairs: Pairs | None = None
        self.data = ""
        self._member = member
        self._model_digest = model_digest
        self._specs = specs
        self._data_digest = data_digest
        self._books = control.ledger
        attempt, epoch, _ = resumed.order or (0, 0, 0)
        self._start = wire.Position(epoch=epoch, window=control.window, attempt=attempt)
        self._problem = resumed.problem

    def __call__(self) -> wire.RankHello:
        """The Hello as of now."""
        member, reporter = self._member, self.reporter
        assert member is not None
        return wire.RankHello(
            wire_version=WIRE_VERSION,
            run_uid=member.config.run_uid,
            attempt=member.config.attempt,
            member_uid=member.uid,
            member=member.name,
            cohort=member.cohort,
            local_rank=member.local_rank,
            address=member.address,
            model_digest=self._model_digest,
            model=self._specs,
            dataset_digest=self._data_digest,
            dataset_samples=self._books.samples,
            total_samples=self._books.total,
            batch_size=self._books.batch_size,
            committed=reporter.position() if reporter is not None else self._start,
            checkpoint_error=self._problem[:1024],
            data=self.data,
            reach=self.pairs.reach if self.pairs is not None else None,
            echo=reporter.echo() if reporter is not None else None,
        )
