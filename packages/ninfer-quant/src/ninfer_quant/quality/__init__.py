"""What quantization costs: comparing weights, sweeping over recipes, planning bits."""
