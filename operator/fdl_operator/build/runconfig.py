"""The resolved run, as coordinator and members read it."""

from fdl_api import names
from fdl_api.run import FdlRunSpec
from fdl_api.runconfig import CohortConfig, RunConfig, ScriptConfig
from fdl_operator.model import RunRecord
from fdl_operator.plan.members import wanted


def checkpoint_dir(run: RunRecord) -> str:
    """A run's own directory below the mounted claim; the UID keeps a re-created run of the same name apart."""
    return f"{names.CHECKPOINT_DIR}/{run.name}-{run.uid[:8]}"


def script_path(spec: FdlRunSpec) -> str:
    """Absolute path of the script in the member's container."""
    source = spec.trainer.source
    if source.config_map is not None:
        return f"{names.SCRIPT_DIR}/{source.config_map.key}"
    if source.volume is not None:
        return f"{names.SCRIPT_DIR}/{source.volume.path}"
    if source.image is not None:
        return source.image.path
    raise ValueError("spec.trainer.source: set exactly one of image, configMap and volume")


def run_config(run: RunRecord, spec: FdlRunSpec, *, attempt: int, must_resume: bool) -> RunConfig:
    """One attempt of a run with every default filled in.

    Args:
        run: the run; its status has the NCCL version of each cohort.
        spec: its spec.
        attempt: number of this attempt, from 1.
        must_resume: members must not start from random weights.
    """
    data = spec.data
    members = wanted(spec)
    versions = {cohort.name: cohort.nccl for cohort in run.status.cohorts} if spec.mode.is_nccl else {}
    return RunConfig(
        name=run.name,
        namespace=run.namespace,
        run_uid=run.uid,
        attempt=attempt,
        mode=spec.mode,
        coordinator_host=names.coordinator_host(run.name, run.namespace),
        coordinator_port=names.COORDINATOR_PORT,
        cohorts=[
            CohortConfig(
                name=cohort.name,
                vendor=cohort.vendor.value,
                min_replicas=cohort.min_replicas,
                max_replicas=cohort.ceiling,
                devices_per_replica=cohort.devices_per_replica,
                rank_spans=cohort.rank_spans,
                replicas=members[cohort.name],
                nccl=versions.get(cohort.name) or None,
                allow_simulated=cohort.allow_simulated,
            )
            for cohort in spec.cohorts
        ],
        join=spec.join,
        elche=spec.elche,
        checkpoint=spec.checkpoint,
        checkpoint_dir=checkpoint_dir(run) if spec.checkpoint is not None else None,
        data_dir=data.mount_path,
        data_sentinel=data.sentinel,
        audit=data.audit,
        failure_policy=spec.failure_policy,
        script=ScriptConfig(path=script_path(spec), args=list(spec.trainer.args)),
        must_resume=must_resume,
    )
