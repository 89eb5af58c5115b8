"""Checks of network, volumes, and the rest of the machine."""

from typing import Final

from fdl_api.checks.model import CheckInfo, Finding

_STALE_MOUNT: Final = Finding(
    "stale",
    "fail",
    "transient",
    "the file server no longer knows the mount (stale NFS handle)",
    "Mount the volume anew on this node; pods that use it have to be made anew.",
    blocking=True,
)
_CHECK_SERVER: Final = "Check the volume's server and the network to it; the prober looks again."
_LOOK_AT_PROBER: Final = "Look at the prober pod of this node: kubectl get pods -A -l fdl.dev/role=prober -o wide."
_RUN_TIME_SERVICE: Final = "Run a time service (chrony, systemd-timesyncd) on this node."

INTERFACES: Final = CheckInfo(
    "interfaces",
    "fabric",
    "network interfaces as pods on the node have them: addresses, speed, MTU",
    (
        Finding(
            "none",
            "fail",
            "transient",
            "none is up with an address",
            "Check the node's CNI plugin or network cable: members cannot reach each other without an interface.",
            blocking=True,
        ),
    ),
)
SOCKET_INTERFACE: Final = CheckInfo(
    "socket-interface",
    "fabric",
    "the interface that FdlCluster's spec.fabric (or --socket-interface) names for this machine",
    (
        Finding(
            "missing",
            "fail",
            "permanent",
            "there is no such interface",
            "Correct socketInterface of this node's group to one of the interfaces that the message names.",
        ),
        Finding(
            "down",
            "fail",
            "transient",
            "it is down",
            "Bring the interface up on the node, or name another one in spec.fabric.",
        ),
        Finding(
            "no-address",
            "fail",
            "permanent",
            "it is up and has no address",
            "Give the interface an address, or name another one in spec.fabric.",
        ),
        Finding(
            "loopback",
            "fail",
            "permanent",
            "it is the loopback, which no other machine reaches",
            "Name an interface that the other nodes reach in spec.fabric.",
        ),
    ),
)
RDMA: Final = CheckInfo(
    "rdma",
    "fabric",
    "RDMA devices and their ports, and the limit on locked memory",
    (
        Finding(
            "port-down",
            "warn",
            "permanent",
            "no port of a device is active",
            "Check cable and switch of the device, or exclude it for all nodes with NCCL_IB_HCA: nodes with different "
            "sets hang.",
        ),
        Finding(
            "locked-memory",
            "warn",
            "permanent",
            "RDMA needs locked memory, and the limit is small",
            "Raise the limit on locked memory of the container runtime (LimitMEMLOCK=infinity in its unit) or in "
            "limits.conf.",
        ),
    ),
)
SHARED_MEMORY: Final = CheckInfo(
    "shared-memory",
    "fabric",
    "size of /dev/shm; pods of members have their own",
    (
        Finding(
            "small",
            "warn",
            "permanent",
            "it is smaller than 1 GiB, and NCCL and data loaders share buffers there",
            "Start the container with --shm-size=8g, or remount it: mount -o remount,size=8G /dev/shm.",
        ),
    ),
    place="local",
)
DATA_PATH: Final = CheckInfo(
    "data-path",
    "data",
    "folders for data and checkpoints that the prober was told of",
    (
        Finding(
            "absent",
            "fail",
            "permanent",
            "it is not there",
            "Mount the volume at this path, or correct the path.",
            blocking=True,
        ),
        Finding(
            "not-a-folder",
            "fail",
            "permanent",
            "it is no folder",
            "Name the folder that holds the data.",
            blocking=True,
        ),
        Finding(
            "no-permission",
            "fail",
            "permanent",
            "it cannot be listed or read; for checkpoints: not be written",
            "Give user and group 65532 (in a cluster) or this user the right, e.g. by fsGroup or chown.",
            blocking=True,
        ),
        Finding(
            "read-only",
            "fail",
            "permanent",
            "checkpoints should go there, and the volume is mounted read-only",
            "Mount it for writing, or name another volume for checkpoints.",
            blocking=True,
        ),
        _STALE_MOUNT,
        Finding(
            "broken",
            "fail",
            "transient",
            "reading ends with another error",
            "See the kernel log of the node for the volume's file system or server.",
            blocking=True,
        ),
        Finding(
            "no-answer",
            "unknown",
            "transient",
            "the look did not end within its time limit: the file server does not answer",
            _CHECK_SERVER,
            blocking=True,
        ),
    ),
)
SHARED_VOLUME: Final = CheckInfo(
    "shared-volume",
    "data",
    "a file that all machines should see alike (the chart's prober.sentinel, or --sentinel), by its hash",
    (
        Finding(
            "unreadable",
            "fail",
            "permanent",
            "it cannot be read",
            "Check prober.sentinel in the chart's values, and the volume's mount on this node.",
            blocking=True,
        ),
        _STALE_MOUNT,
        Finding(
            "no-answer",
            "unknown",
            "transient",
            "reading did not end within its time limit: the file server does not answer",
            _CHECK_SERVER,
            blocking=True,
        ),
    ),
)
DISK_SPACE: Final = CheckInfo(
    "disk-space",
    "data",
    "free space and free files of folders for checkpoints",
    (
        Finding(
            "full",
            "fail",
            "transient",
            "less than 1 GiB or less than 1,000 files are free",
            "Remove old checkpoints, or enlarge the volume.",
        ),
        Finding(
            "low",
            "warn",
            "transient",
            "less than the wanted space is free (20 GiB by default)",
            "Lower spec.checkpoint.keep of the runs, remove old checkpoints, or enlarge the volume.",
        ),
    ),
)
READ_SPEED: Final = CheckInfo(
    "read-speed",
    "data",
    "reading the largest of the first files of a data folder for at most 2 s, once an hour",
    (
        Finding(
            "slow",
            "warn",
            "transient",
            "slower than 20 MB/s",
            "Stage the data on a faster or nearer volume: ranks will wait for it.",
        ),
    ),
)
CLOCK: Final = CheckInfo(
    "clock",
    "host",
    "offset from the API server's clock",
    (
        Finding(
            "skewed",
            "warn",
            "transient",
            "more than 2 s",
            _RUN_TIME_SERVICE,
        ),
        Finding(
            "far-off",
            "fail",
            "transient",
            "more than 30 s",
            _RUN_TIME_SERVICE,
            blocking=True,
        ),
    ),
    place="cluster",
)
PORTS: Final = CheckInfo(
    "ports",
    "host",
    "ports that programs of fdl listen on outside of a cluster (coordinator 7337, or --port)",
    (
        Finding(
            "in-use",
            "warn",
            "transient",
            "another program listens on it",
            "End the program that the message names if it is left from an earlier run, or use another port.",
        ),
    ),
    place="local",
)
STALE_PROCESSES: Final = CheckInfo(
    "stale-processes",
    "host",
    "processes that hold device memory; on nodes only with FDL_STALE_PROCESSES=true and the host's process namespace",
    (
        Finding(
            "holding",
            "warn",
            "transient",
            "a process holds device memory and belongs to no pod, or its starter is gone",
            "End it on the machine (kill PID) if it is left from an earlier run.",
        ),
    ),
)
LIMITS: Final = CheckInfo(
    "limits",
    "host",
    "memory, processor and process limits of the control group that this program is in",
    (
        Finding(
            "memory",
            "warn",
            "permanent",
            "less than 4 GiB of memory",
            "Raise the container's memory limit: a rank that exceeds it is killed.",
        ),
        Finding(
            "cpu",
            "warn",
            "permanent",
            "less than one processor",
            "Raise the container's cpu limit: a rank that is throttled misses its heartbeats.",
        ),
        Finding(
            "processes",
            "warn",
            "permanent",
            "fewer than 512 processes and threads",
            "Raise the container's limit on processes (--pids-limit): torch and NCCL start many threads.",
        ),
    ),
    place="local",
)
HOST_SURVEY: Final = CheckInfo(
    "host-survey",
    "host",
    "the look at processors, memory, interfaces and control group itself",
    (
        Finding(
            "no-answer",
            "unknown",
            "transient",
            "it did not end within its time limit, or ended with an error",
            "See the kernel log of the node; a driver that hangs in sysfs is often a broken device.",
        ),
    ),
)
REPORT_AGE: Final = CheckInfo(
    "report-age",
    "host",
    "the age of a node's newest report",
    (
        Finding(
            "unreadable",
            "fail",
            "transient",
            "there is none, or it is no report",
            _LOOK_AT_PROBER,
            blocking=True,
        ),
        Finding(
            "old",
            "fail",
            "transient",
            "it is older than FdlCluster's reportMaxAgeSeconds",
            _LOOK_AT_PROBER,
            blocking=True,
        ),
        Finding(
            "ahead",
            "fail",
            "transient",
            "its time lies further in the future than that, so that its age is not known",
            _RUN_TIME_SERVICE,
            blocking=True,
        ),
    ),
    place="cluster",
    by="operator",
)
QUARANTINE: Final = CheckInfo(
    "quarantine",
    "host",
    "FdlCluster's spec.quarantine, and the deep checks of the node",
    (
        Finding(
            "by-people",
            "fail",
            "permanent",
            "spec.quarantine.nodes names the node",
            "Take the node out of spec.quarantine.nodes of FdlCluster/default when it may be used again; members that "
            "run here go on.",
            blocking=True,
        ),
        Finding(
            "deep-checks",
            "fail",
            "transient",
            "so many deep checks of a variant went wrong in a row as spec.quarantine.automatic says",
            "See the deep checks in the node's report and mend the device; the quarantine ends with a deep check that "
            "passes, or at the time in status.quarantine of FdlCluster/default.",
            blocking=True,
        ),
    ),
    place="cluster",
    by="operator",
)

CHECKS: Final = (
    INTERFACES,
    SOCKET_INTERFACE,
    RDMA,
    SHARED_MEMORY,
    DATA_PATH,
    SHARED_VOLUME,
    DISK_SPACE,
    READ_SPEED,
    CLOCK,
    PORTS,
    STALE_PROCESSES,
    LIMITS,
    HOST_SURVEY,
    REPORT_AGE,
    QUARANTINE,
)
