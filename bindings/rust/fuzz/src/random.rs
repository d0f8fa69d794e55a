//! The random numbers of a case.

/// xorshift64*, its state spread out so that neighbouring seeds have nothing in common.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((mixed ^ (mixed >> 31)) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From 0 to n - 1.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// A size that is mostly `usual`, sometimes off by a little, sometimes absurd.
    pub fn size(&mut self, usual: usize) -> usize {
        match self.below(64) {
            0 => usual.wrapping_add(1),
            1 => usual.saturating_sub(1),
            2 => 1usize.checked_shl(self.below(64) as u32).unwrap_or(0),
            3 => self.pick(&[usize::MAX, usize::MAX - 1, usize::MAX / 2, i32::MAX as usize]),
            _ => usual,
        }
    }

    pub fn position(&mut self) -> i64 {
        match self.below(8) {
            0 => self.pick(&[0, -1, i64::MIN, i64::MAX, 1 << 31, 1 << 38, 1 << 53, -(1 << 40)]),
            1 => self.next() as i64,
            _ => self.below(1 << 20) as i64,
        }
    }

    /// A number as configurations hold them.
    pub fn number(&mut self) -> f64 {
        match self.below(24) {
            0 => self.pick(&[0.0, -0.0, -1.0, 1e-300, 1e300, f64::MIN_POSITIVE, 5e-324]),
            1 => self.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN]),
            2 => f64::from_bits(self.next()),
            _ => self.pick(&[1.0, 2.0, 4.0, 8.0, 32.0, 0.5, 1.5, 40.0, 10000.0, 5e5]),
        }
    }
}
