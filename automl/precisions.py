"""What networks compute in, by name. No torch: ``automl.devices`` makes it so."""

from manta_swarm.protocol.errors import UserError

FP32 = "fp32"
TF32 = "tf32"  # what a convolution multiplies is rounded to 10 bits
BF16 = "bf16"  # what is safe is computed and kept in bfloat16 (torch's autocast)
PRECISIONS = (FP32, TF32, BF16)


def check_precision(precision: str, device: str) -> None:
    """Refuse one that the device is not measured in.

    Raises:
        UserError: it is the CPU, and not fp32.
    """
    if precision != FP32 and device.split(":")[0] == "cpu":
        raise UserError(f"--precision {precision} is for GPUs: give --device cuda as well, or leave it out")


def check_device(name: str) -> None:
    """Refuse the name of what is no device anywhere; whether a GPU is here, only torch can say.

    Raises:
        UserError: it is none.
    """
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise UserError(f"there is no device {name!r} here; use --device cpu")
