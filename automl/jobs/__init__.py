"""What the commands of manta-search do (``automl.commands``), once what was typed is checked: one a module, torch and all."""
