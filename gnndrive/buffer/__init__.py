"""The feature buffer: slots, admission, leases; policies and devices."""
