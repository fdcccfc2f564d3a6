"""Measuring the disk: raw reads as fio does them, a real sample's rows, and the calibration."""
