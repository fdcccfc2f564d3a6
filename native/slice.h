/* slice.h: for a thread that others wait for, and that runs for a moment at a time; see slice.c. */
#ifndef GNNDRIVE_SLICE_H
#define GNNDRIVE_SLICE_H
/* Ask for short slices for the calling thread, if it is an ordinary one; nothing if that fails. */
void gd_short_slice(void);
#endif
