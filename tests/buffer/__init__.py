"""Tests of the feature buffer's C core: native/buffer.c and native/standby.c."""
