"""Checks of trainer variants, torch's kernels, and NCCL."""

from typing import Final

from fdl_api.checks.model import CheckInfo, Finding

VARIANT_METADATA: Final = CheckInfo(
    "variant-metadata",
    "libtorch",
    "FdlCluster's variants, and what their images' torch said in deep checks",
    (
        Finding(
            "cluster-unknown",
            "warn",
            "transient",
            "FdlCluster/default cannot be read",
            "See that the operator runs (it creates FdlCluster/default) and that the prober may read it.",
        ),
        Finding(
            "no-variant",
            "warn",
            "permanent",
            "there is no variant for a vendor of the node, or none for members on the processor",
            "Add an image of this vendor to spec.variants of FdlCluster/default.",
        ),
        Finding(
            "archs-differ",
            "warn",
            "permanent",
            "the architectures of spec.variants are not those that the image's torch has kernels for",
            "Correct archs of this variant in FdlCluster/default to what the message names.",
        ),
    ),
    place="cluster",
)
VARIANT_IMAGE: Final = CheckInfo(
    "variant-image",
    "libtorch",
    "waiting deep-check pods of the node",
    (
        Finding(
            "not-pulled",
            "warn",
            "transient",
            "the kubelet cannot get a variant's image",
            "Correct the image's name in spec.variants of FdlCluster/default, push it, or name its pull secret in the "
            "chart's imagePullSecrets.",
        ),
    ),
    place="cluster",
)
VARIANT_FILE: Final = CheckInfo(
    "variant-file",
    "libtorch",
    "the file that describes the torch of a trainer image (/opt/fdl/variant.json, or --variant-file)",
    (
        Finding(
            "missing",
            "fail",
            "permanent",
            "the named file cannot be read",
            "Write it with python -m fdl_trainer.variant --name NAME, in the environment whose torch it describes.",
        ),
        Finding(
            "garbage",
            "fail",
            "permanent",
            "the file is no description of a variant",
            "Write it anew with python -m fdl_trainer.variant --name NAME.",
        ),
        Finding(
            "not-in-image",
            "unknown",
            "permanent",
            "on a node: the image of a deep check has none, or one that is no description of a variant",
            "Write it when the image is built, after its torch is installed: python -m fdl_trainer.variant --name NAME "
            "> /opt/fdl/variant.json.",
        ),
    ),
)
KERNEL_COVERAGE: Final = CheckInfo(
    "kernel-coverage",
    "libtorch",
    "each architecture of the machine's devices against all variants of its vendor, by exact token",
    (
        Finding(
            "gap",
            "fail",
            "permanent",
            "no variant has kernels for it",
            "Add an image whose torch was built for this architecture to spec.variants of FdlCluster/default.",
        ),
        Finding(
            "ptx-only",
            "warn",
            "permanent",
            "it runs only by compiling PTX at load time",
            "Expect a slow first start; a variant with machine code for the device avoids it.",
        ),
        Finding(
            "not-comparable",
            "unknown",
            "permanent",
            "the device's architecture is unknown",
            "Update the node's GPU driver, so that it tells the device's architecture.",
        ),
    ),
)
DEEP_CHECK: Final = CheckInfo(
    "deep-check",
    "libtorch",
    "one real kernel per device, run by a variant's own torch",
    (
        Finding(
            "failed",
            "fail",
            "permanent",
            "a kernel did not run, or its result was wrong",
            "See the devices in the report; check the driver against the image's torch build, and the device for "
            "faults.",
        ),
        Finding(
            "no-result",
            "warn",
            "transient",
            "it ended without a result; made again after 10 minutes, then ever later",
            "See the Events of pods with label fdl.dev/role=deep-check; the image can often not be pulled.",
        ),
    ),
)
GLIBC: Final = CheckInfo(
    "glibc",
    "libtorch",
    "the C library against what torch needs",
    (
        Finding(
            "too-old",
            "fail",
            "permanent",
            "torch needs a newer C library: by the loader's words in a deep check, or by torch's build on this machine",
            "Use an image or system with a newer C library, or a torch build for an older one.",
        ),
    ),
)
NCCL_LIBRARY: Final = CheckInfo(
    "nccl-library",
    "nccl",
    "NCCL or RCCL that a variant's torch loads; outside of a cluster, what this machine has",
    (
        Finding(
            "none-loaded",
            "fail",
            "permanent",
            "a variant's torch loads none, or does not load without it",
            "Use an image whose torch has NCCL or RCCL, or run in a cpu-* mode.",
        ),
        Finding(
            "differs",
            "warn",
            "permanent",
            "the image loads another version than FdlCluster's ncclVersion",
            "Correct ncclVersion of this variant in FdlCluster/default, or leave it out.",
        ),
        Finding(
            "not-found",
            "warn",
            "permanent",
            "outside of a cluster: there are GPUs, and neither this Python's torch nor the loader's folders have one",
            "Install torch for the vendor's devices, which brings NCCL or RCCL, or run in a cpu-* mode.",
        ),
        Finding(
            "several",
            "warn",
            "permanent",
            "outside of a cluster: libraries of different major.minor are there, and the loader's path decides",
            "Remove those that torch does not use, or see that LD_LIBRARY_PATH and LD_PRELOAD name the same one on all "
            "machines of a run.",
        ),
    ),
)
NCCL_ENVIRONMENT: Final = CheckInfo(
    "nccl-environment",
    "nccl",
    "NCCL's and the devices' variables in the environment and in nccl.conf; in a cluster, those that a run's "
    "trainer.env and pod templates set: the operator looks at them before any pod starts (condition EnvironmentSound)",
    (
        Finding(
            "ignore-mismatch",
            "fail",
            "permanent",
            "NCCL_IGNORE_NET_MISMATCH is set: nodes with different RDMA devices then hang without an error",
            "Remove NCCL_IGNORE_NET_MISMATCH, and give all nodes of the cohort the same RDMA devices.",
        ),
        Finding(
            "protocol",
            "fail",
            "permanent",
            "NCCL_PROTO forces LL128, which corrupts data on hardware that NCCL would not use it on",
            "Remove NCCL_PROTO; NCCL takes LL128 by itself where it is safe.",
        ),
        Finding(
            "contradiction",
            "fail",
            "permanent",
            "variables ask for what others forbid (NCCL_NET=IB with NCCL_IB_DISABLE=1, NCCL_ALGO=NVLS with "
            "NCCL_NVLS_ENABLE=0), so that NCCL does not start",
            "Remove one of the two variables that the message names; one that is fdl's own is overridden by an entry "
            "in spec.trainer.env.",
        ),
        Finding(
            "wrong-interface",
            "fail",
            "permanent",
            "NCCL_SOCKET_IFNAME matches no interface that is up with an address of NCCL_SOCKET_FAMILY",
            "Name an interface that the other machines reach, e.g. NCCL_SOCKET_IFNAME==eth0, or remove the variable.",
        ),
        Finding(
            "slow-path",
            "warn",
            "permanent",
            "peer-to-peer and shared memory are both off, so that devices of one machine talk by sockets",
            "Remove NCCL_P2P_DISABLE or NCCL_SHM_DISABLE unless one of them is known to be broken here.",
        ),
        Finding(
            "visible-devices",
            "warn",
            "permanent",
            "variables hide devices or number them anew; members set them themselves",
            "Remove them from the environment; of AMD's two, one counts from what the other leaves.",
        ),
    ),
)

CHECKS: Final = (
    VARIANT_METADATA,
    VARIANT_IMAGE,
    VARIANT_FILE,
    KERNEL_COVERAGE,
    DEEP_CHECK,
    GLIBC,
    NCCL_LIBRARY,
    NCCL_ENVIRONMENT,
)
