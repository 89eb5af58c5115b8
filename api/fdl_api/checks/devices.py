"""Checks of GPUs and their drivers."""

from typing import Final

from fdl_api.checks.model import CheckInfo, Finding

GPU_SURVEY: Final = CheckInfo(
    "gpu-survey",
    "devices",
    "devices that a driver answers for (NVML, KFD)",
    (
        Finding(
            "unknown-architecture",
            "warn",
            "permanent",
            "a device's architecture is not told; an unknown product name is no fault",
            "Update the node's GPU driver; a virtual function may need the host's driver updated as well.",
        ),
    ),
)
GPU_DRIVER: Final = CheckInfo(
    "gpu-driver",
    "devices",
    "drivers of the GPUs that are plugged in (PCI)",
    (
        Finding(
            "nvidia-not-loaded",
            "fail",
            "transient",
            "driver-not-ready: an NVIDIA GPU is plugged in and no driver answers; looked for again with back-off",
            "Install NVIDIA's driver on the node or wait until the GPU operator has done so. Where it is installed, "
            "let the prober reach it: prober.runtimeClassName=nvidia, or prober.driverRoot and prober.privileged=true.",
        ),
        Finding(
            "nvidia-mismatch",
            "fail",
            "permanent",
            "driver-not-ready: NVML's library and the loaded kernel module are of different versions",
            "Restart the node, or unload and load the nvidia kernel modules: an update changed the library under them.",
        ),
        Finding(
            "nvidia-broken",
            "fail",
            "permanent",
            "driver-not-ready: NVML is there and does not start, or knows no device",
            "See nvidia-smi and the kernel log on the node; install the driver anew if they say the same.",
        ),
        Finding(
            "nouveau",
            "fail",
            "permanent",
            "driver-not-ready: the kernel's nouveau driver holds an NVIDIA GPU",
            "Blacklist nouveau, install NVIDIA's driver, and restart the node.",
        ),
        Finding(
            "amd-not-loaded",
            "fail",
            "transient",
            "driver-not-ready: an AMD GPU is plugged in and the kernel has no KFD topology for it",
            "Load the amdgpu kernel module on the node, or install the AMD GPU operator; the prober looks again.",
        ),
        Finding(
            "amd-hidden",
            "fail",
            "permanent",
            "driver-not-ready: the kernel hides AMD GPUs from a container that may not open them",
            "Set prober.privileged=true in the chart's values, or pass /dev/kfd and /dev/dri to the container: the "
            "kernel shows AMD GPUs only to those who may open them.",
        ),
        Finding(
            "no-answer",
            "unknown",
            "transient",
            "driver-not-ready: the look did not end within its time limit",
            "See the kernel log of the node for the driver's errors, and restart the node if the driver stays stuck.",
        ),
        Finding(
            "nonsense",
            "unknown",
            "transient",
            "driver-not-ready: the look crashed, or what it read cannot be (a half-written file, impossible counts)",
            "It is looked at again; if it stays so, see the kernel log of the node and install the driver anew.",
        ),
    ),
)
DEVICE_FILES: Final = CheckInfo(
    "device-files",
    "devices",
    "owner, group and mode of /dev/nvidia*, /dev/kfd, /dev/dri/renderD*",
    (
        Finding(
            "closed",
            "fail",
            "permanent",
            "neither a group nor everybody may read and write the file",
            "Set mode 0660 and a group that members have (render or video for AMD), or 0666, by a udev rule.",
            blocking=True,
        ),
        Finding(
            "group-needed",
            "warn",
            "permanent",
            "on a cluster's node: only a group may open the file, and members are not in it by themselves",
            "Add the group's number to securityContext.supplementalGroups in spec.cohorts[].podTemplate of the run, or "
            "set mode 0666 by a udev rule.",
        ),
        Finding(
            "not-openable",
            "fail",
            "permanent",
            "outside of a cluster: this user may not open the file",
            "Add the user to the group that the message names (usermod -aG GROUP USER), and log in anew.",
        ),
        Finding(
            "not-allowed",
            "fail",
            "permanent",
            "the device cgroup refuses the file although its mode allows it",
            "Give the container the device: --device=/dev/kfd --device=/dev/dri or --gpus all, or a device plugin's "
            "resource in its pod.",
        ),
        Finding(
            "absent",
            "fail",
            "permanent",
            "outside of a cluster: the driver knows the device and its file is not there",
            "Pass the device's file into the container, or load the module that makes it (nvidia-modprobe -u, amdgpu).",
        ),
    ),
)
ROCM_USERSPACE: Final = CheckInfo(
    "rocm-userspace",
    "devices",
    "HIP and HSA runtime libraries, where an AMD GPU is there",
    (
        Finding(
            "missing",
            "fail",
            "permanent",
            "a variant's image lacks a library of it, by the loader's words in a deep check; outside of a cluster: "
            "neither /opt/rocm nor the loader's folders nor this Python's torch have libamdhip64",
            "Install ROCm's runtime (package hip-runtime-amd), or a torch build for ROCm, which brings it.",
        ),
    ),
)
MIXED_VENDORS: Final = CheckInfo(
    "mixed-vendors",
    "devices",
    "vendors of the GPUs of one machine",
    (
        Finding(
            "mixed",
            "warn",
            "permanent",
            "there are working GPUs of both vendors",
            "Give each vendor a cohort of its own (spec.cohorts[].vendor); one communicator of NCCL or RCCL never "
            "holds both.",
        ),
    ),
)
UNIFIED_MEMORY: Final = CheckInfo(
    "unified-memory",
    "devices",
    "devices that have no memory of their own (APU, integrated GPU)",
    (
        Finding(
            "shared",
            "warn",
            "permanent",
            "a device's memory is the machine's main memory",
            "Set a memory limit for its members that leaves room for the rest of the machine: what the device uses "
            "counts for it too.",
        ),
    ),
)
DEVICE_PRESENCE: Final = CheckInfo(
    "device-presence",
    "devices",
    "devices that were there since the machine started, and GPUs on the PCI bus",
    (
        Finding(
            "vanished",
            "fail",
            "permanent",
            "a device that was seen since the machine started is gone; forgotten when it is back or at a restart",
            "See the kernel log for why (NVIDIA: Xid 79, AMD: GPU reset), then reset the device or restart "
            "the machine.",
        ),
        Finding(
            "lost",
            "fail",
            "permanent",
            "the driver lists a device that does not answer",
            "Drain the node and restart it; a device that gets lost again needs service.",
        ),
        Finding(
            "unclaimed",
            "warn",
            "permanent",
            "fewer devices answer than are on the PCI bus, those lent to virtual machines (vfio-pci) left out",
            "See the kernel log for the device's address; a container sees only the devices that it was given.",
        ),
    ),
)
DEVICE_ERRORS: Final = CheckInfo(
    "device-errors",
    "devices",
    "Xid messages of the last day in the kernel log where it can be read, ECC and RAS counters, rows to be remapped",
    (
        Finding(
            "xid",
            "fail",
            "permanent",
            "an Xid that the vendor's catalogue answers with a reset or a replacement",
            "Drain the node and reset the device (nvidia-smi --gpu-reset) or restart the node; replace it if it comes "
            "back.",
        ),
        Finding(
            "xid-noted",
            "warn",
            "transient",
            "an Xid that lets work go on, but tells of a device that begins to fail",
            "Watch the device; reset it at the next opportunity.",
        ),
        Finding(
            "recovery",
            "fail",
            "permanent",
            "NVIDIA's driver asks for a reset or restart before the device works again",
            "Drain the node, and do what the message names: reset the device (nvidia-smi --gpu-reset) or restart the "
            "node.",
        ),
        Finding(
            "ecc-uncorrected",
            "fail",
            "permanent",
            "memory errors that could not be corrected since the driver was loaded",
            "Reset the device when it is idle; replace it if the errors come back.",
        ),
        Finding(
            "remap-pending",
            "warn",
            "permanent",
            "broken memory will be replaced by spare rows at the next reset",
            "Reset the device when it is idle (nvidia-smi --gpu-reset), or restart the node.",
        ),
        Finding(
            "remap-failed",
            "fail",
            "permanent",
            "broken memory, and no spare rows to replace it",
            "Replace the device.",
        ),
    ),
)
MIG: Final = CheckInfo(
    "mig",
    "devices",
    "MIG mode and instances of NVIDIA devices",
    (
        Finding(
            "instances",
            "warn",
            "permanent",
            "a device is cut into MIG instances; the count label counts whole devices",
            "Name the instances' resource in spec.cohorts[].deviceResource, or turn MIG off on this device.",
        ),
        Finding(
            "no-instances",
            "fail",
            "permanent",
            "MIG mode is on and the device has no instance, so nothing can use it",
            "Create instances (nvidia-smi mig -cgi ... -C), or turn MIG off on this device.",
        ),
        Finding(
            "change-pending",
            "warn",
            "permanent",
            "MIG mode was switched and waits for a reset of the device",
            "Reset the device when it is idle (nvidia-smi --gpu-reset), or restart the node.",
        ),
    ),
)
PARTITIONS: Final = CheckInfo(
    "partitions",
    "devices",
    "compute partitions of AMD devices",
    (
        Finding(
            "partitioned",
            "warn",
            "permanent",
            "a device is partitioned (DPX, QPX, CPX); each partition counts as a device and shares the card's memory",
            "Size batches for a partition's share of the memory, or set the mode back: amd-smi set "
            "--compute-partition SPX.",
        ),
    ),
)

CHECKS: Final = (
    GPU_SURVEY,
    GPU_DRIVER,
    DEVICE_FILES,
    ROCM_USERSPACE,
    MIXED_VENDORS,
    UNIFIED_MEMORY,
    DEVICE_PRESENCE,
    DEVICE_ERRORS,
    MIG,
    PARTITIONS,
)
