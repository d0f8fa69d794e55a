//! A reference in f64 that shares nothing with the library, and the repository's test data.
#![allow(dead_code)] // each test file uses its part

pub mod cache;

use librope::half::{bf16, f16};
use librope::{Context, Error, Pairing, Result};

/// The vectors that all languages share: `tests/data` of the repository.
pub fn data(name: &str) -> serde_json::Value {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/data").join(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{}: {e}; these tests run in the repository", path.display()));
    serde_json::from_str(&text).expect("test data is JSON")
}

pub fn numbers(value: &serde_json::Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

/// The message of a refusal.
pub fn refused<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::InvalidArgument(message) | Error::Unsupported(message)) => message,
        other => panic!("{other:?}"),
    }
}

/// xorshift64*: the same cases on every run.
pub struct Random(pub u64);

impl Random {
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

    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// From -1 to 1.
    pub fn signed(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn vec<T: Number>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| T::from_f64(self.signed())).collect()
    }
}

/// The element types with what tests need of them.
pub trait Number: librope::Element + PartialEq + std::fmt::Debug {
    /// Half a unit in the last place of 1.
    const HALF_ULP: f64;
    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
}

impl Number for f32 {
    const HALF_ULP: f64 = 1.0 / (1u64 << 24) as f64;
    fn from_f64(x: f64) -> f32 {
        x as f32
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl Number for f16 {
    const HALF_ULP: f64 = 1.0 / 2048.0;
    fn from_f64(x: f64) -> f16 {
        f16::from_f64(x)
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl Number for bf16 {
    const HALF_ULP: f64 = 1.0 / 256.0;
    fn from_f64(x: f64) -> bf16 {
        bf16::from_f64(x)
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
}

/// Rotates one head: `angles[i]` for pair `i` of `channels[offset..offset + 2 * angles.len()]`, cos
/// and sin times `a`. Returns the result and, per channel, how far rounding may be off.
pub fn rotate_head<T: Number>(
    x: &[T],
    offset: usize,
    pairing: Pairing,
    angles: &[f64],
    a: f64,
) -> (Vec<f64>, Vec<f64>) {
    let mut y: Vec<f64> = x.iter().map(|v| v.to_f64()).collect();
    let mut bound = vec![0.0; x.len()];
    let n = angles.len();
    for (i, &angle) in angles.iter().enumerate() {
        let halves = (offset + i, offset + n + i);
        let adjacent = (offset + 2 * i, offset + 2 * i + 1);
        let (from, to) = match pairing {
            Pairing::Halves => (halves, halves),
            Pairing::Interleaved => (adjacent, adjacent),
            Pairing::InterleavedToHalves => (adjacent, halves),
            other => panic!("no reference for {other:?}"),
        };
        let (x0, x1) = (x[from.0].to_f64(), x[from.1].to_f64());
        let (c, s) = (angle.cos() * a, angle.sin() * a);
        y[to.0] = x0 * c - x1 * s;
        y[to.1] = x1 * c + x0 * s;
        for channel in [to.0, to.1] {
            // cos and sin to 1.5e-7, the products in f32, then one rounding to the type.
            let f32_part = (1.5e-7 + 4.0 * f32::HALF_ULP) * a.abs() * (x0.abs() + x1.abs());
            bound[channel] = f32_part + T::HALF_ULP * (y[channel].abs() + f32_part) + 1e-40;
        }
    }
    (y, bound)
}

/// The angles of one position, as `Angle::Float32` defines them: a product rounded to f32.
pub fn angles(context: &Context, position: i64) -> Vec<f64> {
    let inv_freq = context.inv_freq(0).unwrap();
    inv_freq.iter().map(|&f| f64::from(position as f32 * f as f32)).collect()
}
