"""The pipeline (GNNDrive §4.1): sample → extract → train → release, four kinds of tasks and three
bounded channels.
"""
