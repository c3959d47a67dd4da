"""What the notebooks and the shipped data are made with: data sets, tiny checkpoints, fixtures.

Nothing of the pipeline imports from here.
"""
