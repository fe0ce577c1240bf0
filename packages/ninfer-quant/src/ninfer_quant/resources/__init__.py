"""The files beside the weights: found, checked and normalised for the artifact."""
