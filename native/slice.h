/* slice.h: short scheduler slices for a thread that others wait for; see slice.c. */
#ifndef GNNDRIVE_SLICE_H
#define GNNDRIVE_SLICE_H
/* Ask for short slices for the calling thread if it is an ordinary one. A failure changes nothing.
 */
void gd_short_slice(void);
#endif
