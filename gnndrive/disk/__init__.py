"""What reads from the disk: layouts, engines, tiers."""
