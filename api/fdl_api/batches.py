"""Batches larger than the data, or than a rank's share of it: nothing breaks, and somebody should know. Pure."""


def too_large(who: str, batch_size: int, samples: int, ranks: int) -> str:
    """What a batch size means that leaves ranks without a full batch in a pass over the data; empty where none does.

    Args:
        who: the rank that tells it; all have the same data and batch size.
        batch_size: samples a batch, of ``session.setup``.
        samples: samples of the dataset.
        ranks: ranks that the run wants, at least 1.
    """
    if batch_size * ranks <= samples:
        return ""
    said = f"{who}: batch_size of session.setup is {batch_size} and the dataset has {samples} samples"
    remedy = f"lower batch_size to at most {max(1, samples // ranks)} in a new run, or use more data"
    if ranks == 1:
        return f"{said}: each batch is a whole pass over it; {remedy}."
    batches = -(-samples // batch_size)
    few = f"{batches} batch{'es' if batches > 1 else ''} for {ranks} ranks"
    return f"{said}: a pass over it is {few}, of which some do less than a full one, or nothing; {remedy}."
