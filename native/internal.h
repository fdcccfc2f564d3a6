/* internal.h: what the C files share and Python does not see. */
#ifndef GNNDRIVE_INTERNAL_H
#define GNNDRIVE_INTERNAL_H
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "gnndrive.h"
#endif
