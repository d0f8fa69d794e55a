//! Sizes in elements. A size that wraps around would let a call reach beyond its slice, so all
//! arithmetic that decides about slices is here, checked, and tested for 32 bits as well as 64.

use crate::error::{Result, invalid};

macro_rules! sizes {
    ($size:ty) => {
        /// The product, or `None` if it does not fit.
        #[inline]
        pub(crate) fn product<const N: usize>(factors: [$size; N]) -> Option<$size> {
            // The common case costs no checks: factors of an Nth of the bits each cannot overflow.
            if factors.iter().fold(0, |all, f| all | f) >> (<$size>::BITS as usize / N) == 0 {
                return Some(factors.iter().product());
            }
            factors.iter().try_fold(1, |all: $size, &f| all.checked_mul(f))
        }

        /// One more than the largest offset that `counts` steps of `strides` reach, where each step
        /// touches `width` elements; `None` if it does not fit, or a count is 0.
        #[inline]
        pub(crate) fn reach<const N: usize>(
            strides: [$size; N],
            counts: [$size; N],
            width: $size,
        ) -> Option<$size> {
            let mut end = width;
            for (stride, count) in strides.into_iter().zip(counts) {
                end = end.checked_add(stride.checked_mul(count.checked_sub(1)?)?)?;
            }
            Some(end)
        }
    };
}
sizes!(usize);

/// A size as the C API has it.
#[inline]
pub(crate) fn length(value: usize) -> Result<i64> {
    match i64::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => invalid(format_args!("a size of {value} is beyond the address space")),
    }
}

/// Refuses strides that C's signed numbers do not hold, which would become negative there.
#[inline(always)]
pub(crate) fn not_negative(strides: [usize; 3]) -> Result<()> {
    let all = strides.iter().fold(0, |all, stride| all | stride);
    if i64::try_from(all).is_ok() { Ok(()) } else { too_large(strides) }
}

#[cold]
#[inline(never)]
fn too_large(strides: [usize; 3]) -> Result<()> {
    invalid(format_args!("strides {strides:?} must not be beyond {}", i64::MAX))
}

#[cfg(test)]
mod tests {
    mod bits_32 {
        sizes!(u32);
    }
    mod bits_64 {
        sizes!(u64);
    }

    /// Factors around every power of two, where products begin to wrap.
    const EDGES: [u32; 17] = [
        0,
        1,
        2,
        3,
        255,
        256,
        257,
        1023,
        1024,
        1 << 15,
        (1 << 16) - 1,
        1 << 16,
        (1 << 16) + 1,
        1 << 21,
        (1 << 31) - 1,
        1 << 31,
        u32::MAX,
    ];

    fn fitting(wide: u128) -> Option<u32> {
        u32::try_from(wide).ok()
    }

    #[test]
    fn products_of_32_bits_never_wrap() {
        for a in EDGES {
            for b in EDGES {
                let two = u128::from(a) * u128::from(b);
                assert_eq!(bits_32::product([a, b]), fitting(two), "{a} * {b}");
                for c in EDGES {
                    let three = two * u128::from(c);
                    // A zero after an overflow is an overflow as well: no slice has such sizes.
                    let got = bits_32::product([a, b, c]);
                    assert!(got == fitting(three) || got.is_none() && two > u32::MAX.into());
                    for d in EDGES {
                        let got = bits_32::product([a, b, c, d]);
                        let four = fitting(three * u128::from(d));
                        assert!(
                            got == four || got.is_none() && three.max(two) > u32::MAX.into(),
                            "{a} * {b} * {c} * {d}: {got:?}"
                        );
                        if four.is_none() {
                            assert_eq!(got, None, "{a} * {b} * {c} * {d}");
                        }
                    }
                }
            }
        }
        // 2^38 elements: 0 if it wrapped.
        assert_eq!(bits_32::product([32768, 2048, 64, 64]), None);
        assert_eq!(bits_64::product([32768, 2048, 64, 64]), Some(1 << 38));
        assert_eq!(bits_64::product([1 << 16; 4]), None);
        assert_eq!(bits_64::product([(1 << 16) - 1; 4]), Some(0xfffc_0005_fffc_0001));
    }

    #[test]
    fn reaches_of_32_bits_never_wrap() {
        for stride in EDGES {
            for count in EDGES {
                for width in EDGES {
                    let want = u128::from(count)
                        .checked_sub(1)
                        .and_then(|steps| fitting(u128::from(stride) * steps + u128::from(width)));
                    assert_eq!(bits_32::reach([stride], [count], width), want);
                    let twice = u128::from(count).checked_sub(1).and_then(|steps| {
                        fitting(2 * u128::from(stride) * steps + u128::from(width))
                    });
                    assert_eq!(bits_32::reach([stride; 2], [count; 2], width), twice);
                }
            }
        }
        assert_eq!(bits_64::reach([100, 10, 1], [2, 3, 4], 5), Some(128));
    }
}
