"""Events: what people read under ``kubectl describe``."""

from fdl_api import labels
from fdl_operator import clock
from fdl_operator.build.common import Body
from fdl_operator.model import EventNote


def event(note: EventNote, regarding: Body, namespace: str, identity: str, now: float) -> Body:
    """An Event about an object.

    Args:
        note: what it says.
        regarding: reference to the object, with its name.
        namespace: where the Event lives; the object's own where it has one.
        identity: name of this operator's pod.
        now: seconds since 1970.
    """
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{regarding['name'][:40]}-", "namespace": namespace},
        "eventTime": clock.render_micro(now),
        "reportingController": labels.FIELD_MANAGER,
        "reportingInstance": identity[:128],
        "action": note.action,
        "reason": note.reason[:128],
        "note": note.message[:1024],
        "type": "Warning" if note.warning else "Normal",
        "regarding": regarding,
    }
