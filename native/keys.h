/* keys.h: sorting 64-bit keys. */
#ifndef GNNDRIVE_KEYS_H
#define GNNDRIVE_KEYS_H
#include <stdint.h>
#include <string.h>

enum { GD_DIGIT_BITS = 11, GD_DIGITS = 1 << GD_DIGIT_BITS };

/* How many bits a number takes; 0 for a negative one. */
static inline int gd_bits_of(int64_t value) {
    return value > 0 ? 64 - __builtin_clzll((uint64_t)value) : 0;
}

/* LSD radix sort of a by the bits from `shift` to `top`; stable. Skips a digit that all keys share.
 * Returns where the result is: a or b. */
static inline uint64_t *gd_sort_keys(uint64_t *a, uint64_t *b, int64_t n, int shift, int top) {
    int64_t count[GD_DIGITS];
    for (; n > 1 && shift < top; shift += GD_DIGIT_BITS) {
        memset(count, 0, sizeof count);
        for (int64_t i = 0; i < n; i++) count[(a[i] >> shift) & (GD_DIGITS - 1)]++;
        if (count[(a[0] >> shift) & (GD_DIGITS - 1)] == n) continue;
        for (int64_t digit = 0, sum = 0; digit < GD_DIGITS; digit++) {
            int64_t here = count[digit];
            count[digit] = sum;
            sum += here;
        }
        for (int64_t i = 0; i < n; i++) b[count[(a[i] >> shift) & (GD_DIGITS - 1)]++] = a[i];
        uint64_t *other = a;
        a = b;
        b = other;
    }
    return a;
}
#endif
