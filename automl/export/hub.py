"""Exported networks by the conventions of huggingface_hub: ``from_pretrained``, ``save_pretrained``, ``push_to_hub``.

What travels is the folder that ``manta-search export`` writes, read as strictly as from anywhere else; there is no code in it. The package
is an extra of this project, ``hub``, and only this module knows it.
"""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from manta_swarm.automl.export.description import Description
from manta_swarm.automl.export.folder import folder_files, read_folder
from manta_swarm.automl.forms import CARD, CONFIG, WEIGHTS

try:
    from huggingface_hub import PyTorchModelHubMixin, snapshot_download
except ImportError as error:
    raise ImportError("for model hubs the package huggingface_hub is missing: pip install 'manta-swarm[hub]'") from error


class HubNetwork(nn.Module, PyTorchModelHubMixin, library_name="manta-swarm"):  # type: ignore[misc, call-arg] # the library is an extra
    """An exported network, and what it is; called like the network itself.

    ``from_pretrained(FOLDER or REPOSITORY)`` opens one, ``push_to_hub(REPOSITORY)`` gives it to a hub, with its card.
    """

    def __init__(self, network: nn.Module, description: Description) -> None:
        """Wrap a network as ``read_folder`` returns it."""
        super().__init__()
        self.network = network
        self.description = description
        self.eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return what the network makes of its inputs (``description.input_names``)."""
        output: Tensor = self.network(*inputs)
        return output

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write the folder's files; the library calls it, and leaves what is written."""
        plain = self.network.network
        assert isinstance(plain, nn.Module)
        for name, data in folder_files(plain, self.description).items():
            (save_directory / name).write_bytes(data)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        **others: Any,
    ) -> "HubNetwork":
        """Return the network of a folder, or of a hub's repository; the library calls it.

        Raises:
            UserError: it is none that was exported, or not whole.
        """
        folder = Path(model_id)
        if not folder.is_dir():
            files = [CONFIG, WEIGHTS, CARD]
            got = snapshot_download(
                model_id,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
                allow_patterns=files,
            )
            folder = Path(got)
        return cls(*read_folder(folder))
