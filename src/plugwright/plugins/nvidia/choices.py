"""The words an operator chooses between. Apart from what uses them, so that reading a file loads no more than these."""

from enum import StrEnum

__all__ = ["Action", "By", "Clients", "Cores", "Ids", "Mig", "Mode", "Strategy"]


class Action(StrEnum):
    """What an Xid means for the GPU, and what has to be seen before it is fit again."""

    IGNORE = "ignore"  # a program's error, or of no consequence
    PROBE = "probe"  # until the GPU answers all questions well
    QUIET = "quiet"  # until then, and for a while without another such Xid
    RESET = "reset"  # until it was reset: it went away and is back, or the driver no longer asks for it
    FAIL = "fail"  # until an operator says so


class By(StrEnum):
    """How the tenants of one GPU are kept apart."""

    TIME_SLICING = "time-slicing"  # not at all
    MPS = "mps"
    VGPU = "vgpu"


class Clients(StrEnum):
    """Whose processes may be clients of one MPS daemon at the same time."""

    ONE_USER = "one-user"  # those of another user id wait until the others are gone
    ALL_USERS = "all-users"  # drivers that know `-M`


class Cores(StrEnum):
    """When a vgpu's kernels are slowed down; the words are HAMi's."""

    DEFAULT = "default"  # while others use the GPU too
    FORCE = "force"
    DISABLE = "disable"


class Ids(StrEnum):
    """What containers are told their GPUs by; the kubelet always knows them by UUID."""

    UUID = "uuid"
    INDEX = "index"


class Mig(StrEnum):
    """What becomes of GPUs in MIG mode."""

    NONE = "none"  # they are whole GPUs like the others
    SINGLE = "single"  # all MIG devices are alike, and are this resource
    MIXED = "mixed"  # MIG devices are resources by their profile, GPUs without MIG are whole


class Mode(StrEnum):
    """What MPS does with the compute mode of its GPUs."""

    LEAVE = "leave"
    EXCLUSIVE = "exclusive"  # and puts it back at its end


class Strategy(StrEnum):
    """How a container gets its GPUs."""

    ENVVAR = "envvar"  # NVIDIA's container runtime reads NVIDIA_VISIBLE_DEVICES
    VOLUME_MOUNTS = "volume-mounts"  # it reads mounts instead, which an image cannot set
    DEVICE_NODES = "device-nodes"  # everything comes from the plugin: any runtime will do
    CDI_ANNOTATIONS = "cdi-annotations"  # CDI names, for kubelets before 1.28
    CDI_CRI = "cdi-cri"  # CDI names

    @property
    def is_cdi(self) -> bool:
        return self in (Strategy.CDI_ANNOTATIONS, Strategy.CDI_CRI)
