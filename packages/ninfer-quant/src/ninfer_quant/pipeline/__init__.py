"""From a recipe to a file: preparation, execution, verification, report."""
