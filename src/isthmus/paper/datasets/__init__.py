"""The datasets of the study: a manifest, files and downloads."""
