"""Seeds become samples: schedules, samplers, topologies."""
