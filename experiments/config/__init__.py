"""From Hydra's yaml files to checked objects."""
