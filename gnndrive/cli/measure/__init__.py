"""Measure the disk: raw reads as fio does them, the rows of real samples, and the calibration."""
