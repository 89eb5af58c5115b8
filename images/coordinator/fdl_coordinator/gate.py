"""Who may join: pure rules. Expectations come from the resolved run, never from the first arrival."""

from collections import Counter
from collections.abc import Sequence

from fdl_api.reasons import PERMANENT_REFUSALS, Refusal
from fdl_api.runconfig import CohortConfig, RunConfig
from fdl_api.version import WIRE_VERSION
from fdl_api.wire import AgentHello, ParameterSpec, RankHello, Refuse
from fdl_coordinator.seats import GONE, Seat, SeatBook


def refuse(reason: Refusal, message: str) -> Refuse:
    """A refusal of the class that its reason belongs to."""
    return Refuse(reason=reason, message=message, permanent=reason in PERMANENT_REFUSALS)


def _identity(wire_version: int, run_uid: str, attempt: int, who: str, config: RunConfig) -> Refuse | None:
    if wire_version != WIRE_VERSION:
        return refuse(
            Refusal.WIRE_VERSION_MISMATCH,
            f"{who} speaks wire version {wire_version} and the coordinator {WIRE_VERSION}: "
            "use trainer and operator images of the same fdl release.",
        )
    if run_uid != config.run_uid:
        return refuse(
            Refusal.RUN_IDENTITY_MISMATCH,
            f"{who} belongs to run {run_uid} and this is the coordinator of {config.run_uid} "
            f"({config.namespace}/{config.name}): it dialled an address that another run has now.",
        )
    if attempt != config.attempt:
        return refuse(
            Refusal.STALE_ATTEMPT,
            f"{who} was started for attempt {attempt} and the run is in attempt {config.attempt}: "
            "it is left over and will be replaced.",
        )
    return None


def check_agent(hello: AgentHello, config: RunConfig, seats: SeatBook) -> Refuse | None:
    """Decide on a member's dial.

    Args:
        hello: what the agent says of itself.
        config: the resolved run.
        seats: the members known so far.

    Returns:
        The refusal, or ``None`` when the member is admitted.
    """
    who = f"member {hello.member}"
    wrong = _identity(hello.wire_version, hello.run_uid, hello.attempt, who, config)
    if wrong is not None:
        return wrong
    known = seats.get(hello.member_uid)
    if known is not None and known.state in GONE:
        return refuse(
            Refusal.FENCED,
            f"{who} ({hello.member_uid}) was given up ({known.reason or known.state}) and the run went on without it: "
            "it must end; a new incarnation takes its place.",
        )
    if hello.incarnation < seats.newest_incarnation((hello.cohort, hello.ordinal)):
        return refuse(
            Refusal.FENCED,
            f"{who} is incarnation {hello.incarnation} of {hello.cohort}-{hello.ordinal}, whose place a newer "
            "incarnation has: it must end.",
        )
    cohort = config.cohort(hello.cohort)
    if cohort is None:
        names = ", ".join(item.name for item in config.cohorts)
        return refuse(Refusal.UNKNOWN_COHORT, f"{who} says it is of cohort {hello.cohort!r}; this run has: {names}.")
    return _devices(hello, cohort, config, who)


def _devices(hello: AgentHello, cohort: CohortConfig, config: RunConfig, who: str) -> Refuse | None:
    if not hello.devices:
        return refuse(Refusal.BAD_REQUEST, f"{who} on {hello.host} offers no device: each rank needs one.")
    vendors = sorted({device.vendor for device in hello.devices})
    allowed = {cohort.vendor, "cpu"} if cohort.allow_simulated else {cohort.vendor}
    if not set(vendors) <= allowed:
        return refuse(
            Refusal.VENDOR_MISMATCH,
            f"{who} on {hello.host} has devices of {', '.join(vendors)} and cohort {cohort.name} is declared as "
            f"{cohort.vendor}: a cohort holds one vendor; declare another cohort for these nodes.",
        )
    return _nccl(hello, cohort, config, who) if config.mode.is_nccl else None


def _nccl(hello: AgentHello, cohort: CohortConfig, config: RunConfig, who: str) -> Refuse | None:
    """What an NCCL mode asks of a member beyond the vendor."""
    way_out = "set spec.mode to 'cpu-cadence' or 'cpu-sync' in a new run"
    where = f"{who} on {hello.host}"
    if any(device.vendor == "cpu" for device in hello.devices):
        return refuse(
            Refusal.VENDOR_MISMATCH,
            f"{where} has no real device (its cohort {cohort.name} allows simulated ones) and spec.mode is "
            f"'{config.mode}', which needs one: {way_out}, or take allowSimulated out of spec.cohorts.",
        )
    if hello.nccl_version is None:
        return refuse(
            Refusal.NCCL_VERSION_SKEW,
            f"{where} has a torch without NCCL ({hello.torch_version or 'version unknown'}) and spec.mode is "
            f"'{config.mode}': use a variant whose torch has it (variant of cohort {cohort.name}), or {way_out}.",
        )
    if cohort.nccl and _major_minor(hello.nccl_version) != cohort.nccl:
        return refuse(
            Refusal.NCCL_VERSION_SKEW,
            f"{where} loads NCCL {hello.nccl_version} and cohort {cohort.name} runs {cohort.nccl}: use images of one "
            "major.minor, or an ncclBridge in FdlCluster spec.variants (where there is one, see its version and the "
            f"pod's init container fdl-nccl), or {way_out}.",
        )
    return None


def _major_minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check_rank(hello: RankHello, config: RunConfig, seat: Seat) -> Refuse | None:
    """Decide on a rank's dial, before its model is compared (see :func:`check_signature`)."""
    who = f"rank {hello.local_rank} of {hello.member}"
    wrong = _identity(hello.wire_version, hello.run_uid, hello.attempt, who, config)
    if wrong is not None:
        return wrong
    if seat.state in GONE:
        return refuse(
            Refusal.FENCED,
            f"{who} was given up ({seat.reason or seat.state}) and the run went on without it: it must end.",
        )
    if hello.local_rank >= max(1, len(seat.hello.devices)):
        return refuse(Refusal.BAD_REQUEST, f"{who} is one more than the {len(seat.hello.devices)} devices offered.")
    return None


def first_difference(theirs: Sequence[ParameterSpec], ours: Sequence[ParameterSpec]) -> str:
    """A sentence that names the first entry in which two models differ."""
    for index, (mine, wanted) in enumerate(zip(theirs, ours, strict=False)):
        if mine != wanted:
            return f"entry {index} is {_spec(mine)} here and {_spec(wanted)} in the run"
    if len(theirs) != len(ours):
        return f"it has {len(theirs)} parameters and buffers and the run's has {len(ours)}"
    return "the entries agree but their digests do not"


def _spec(spec: ParameterSpec) -> str:
    return f"{spec.name} {spec.dtype}{list(spec.shape)}"


def check_signature(hello: RankHello, expected: RankHello) -> Refuse | None:
    """Compare a rank's model and data with those of the run."""
    who = f"rank {hello.local_rank} of {hello.member}"
    if hello.model_digest != expected.model_digest:
        return refuse(
            Refusal.MODEL_MISMATCH,
            f"{who} built a different model: {first_difference(hello.model, expected.model)} "
            f"(signature {hello.model_digest[:12]}, the run's {expected.model_digest[:12]}). "
            "The model factory must not depend on the device, the rank or the node.",
        )
    if hello.dataset_digest != expected.dataset_digest:
        return refuse(
            Refusal.DATASET_MISMATCH,
            f"{who} sees different data: {hello.dataset_samples} samples, signature {hello.dataset_digest[:12]}, "
            f"and the run has {expected.dataset_samples}, {expected.dataset_digest[:12]}. "
            "All members must mount the same data and get the same arguments.",
        )
    return None


def majority(hellos: Sequence[RankHello]) -> RankHello:
    """The Hello whose model and data most ranks share; ties go to the first in order.

    Args:
        hellos: at least one Hello, ordered by cohort and ordinal.
    """
    votes = Counter((hello.model_digest, hello.dataset_digest) for hello in hellos)
    winner, _ = max(votes.items(), key=lambda item: item[1])
    return next(hello for hello in hellos if (hello.model_digest, hello.dataset_digest) == winner)
